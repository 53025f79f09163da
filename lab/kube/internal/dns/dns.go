// Package dns answers the cluster's own names (Services, and the pods of headless ones), as pods expect of a cluster.
//
// It knows A records of cluster.local and nothing else: the laboratory has no way out to ask about other names.
package dns

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	zone       = ".svc.cluster.local."
	timeToLive = 5
)

type server struct {
	services corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
}

// NewCommand returns the command `lab-dns`.
func NewCommand() *cobra.Command {
	var kubeconfig, listen string
	command := &cobra.Command{
		Use:           "lab-dns",
		Short:         "Answer the names of a cluster's Services",
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(command *cobra.Command, _ []string) error {
			return serve(command.Context(), kubeconfig, listen)
		},
	}
	command.Flags().StringVar(&kubeconfig, "kubeconfig", "", "credentials that may list Services and EndpointSlices")
	command.Flags().StringVar(&listen, "listen", "127.0.0.1:53", "address and port for UDP and TCP")
	return command
}

func serve(ctx context.Context, kubeconfig, listen string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig %q: %w", kubeconfig, err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	s := &server{
		services: factory.Core().V1().Services().Lister(),
		slices:   factory.Discovery().V1().EndpointSlices().Lister(),
	}
	factory.Start(ctx.Done())
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return fmt.Errorf("list %v: stopped before it was complete", kind)
		}
	}
	packets, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	streams, err := net.Listen("tcp", listen)
	if err != nil {
		return err
	}
	go s.serveTCP(streams)
	return s.serveUDP(packets)
}

func (s *server) serveUDP(packets net.PacketConn) error {
	buffer := make([]byte, 4096)
	for {
		size, peer, err := packets.ReadFrom(buffer)
		if err != nil {
			return err
		}
		if reply, err := s.answer(buffer[:size]); err == nil {
			_, _ = packets.WriteTo(reply, peer) // a lost answer is asked for again
		}
	}
}

func (s *server) serveTCP(listener net.Listener) {
	for {
		connection, err := listener.Accept()
		if err != nil {
			return
		}
		go s.serveStream(connection)
	}
}

func (s *server) serveStream(connection net.Conn) {
	defer connection.Close()
	for {
		_ = connection.SetDeadline(time.Now().Add(10 * time.Second))
		var size uint16
		if binary.Read(connection, binary.BigEndian, &size) != nil {
			return
		}
		query := make([]byte, size)
		if _, err := io.ReadFull(connection, query); err != nil {
			return
		}
		reply, err := s.answer(query)
		if err != nil {
			return
		}
		framed := binary.BigEndian.AppendUint16(nil, uint16(len(reply)))
		if _, err := connection.Write(append(framed, reply...)); err != nil {
			return
		}
	}
}

// answer builds the reply to one packed query. An error means that the query deserves none.
func (s *server) answer(packed []byte) ([]byte, error) {
	var query dnsmessage.Message
	if err := query.Unpack(packed); err != nil {
		return nil, err
	}
	if len(query.Questions) != 1 {
		return nil, fmt.Errorf("%d questions", len(query.Questions))
	}
	question := query.Questions[0]
	reply := dnsmessage.Message{
		Header: dnsmessage.Header{
			ID: query.ID, Response: true, Authoritative: true, RecursionDesired: query.RecursionDesired, RecursionAvailable: true,
		},
		Questions: query.Questions,
	}
	addresses, known := s.resolve(strings.ToLower(question.Name.String()))
	if !known {
		reply.RCode = dnsmessage.RCodeNameError
	}
	if question.Type == dnsmessage.TypeA { // any other type of a name that exists: no records, and no error
		for _, address := range addresses {
			reply.Answers = append(reply.Answers, dnsmessage.Resource{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Type: question.Type, Class: question.Class, TTL: timeToLive},
				Body:   &dnsmessage.AResource{A: address},
			})
		}
	}
	return reply.Pack()
}

// resolve finds service.namespace.svc.cluster.local and, for headless Services, hostname.service.namespace.svc.cluster.local.
func (s *server) resolve(name string) ([][4]byte, bool) {
	rest, inZone := strings.CutSuffix(name, zone)
	if !inZone {
		return nil, false
	}
	parts := strings.Split(rest, ".")
	if len(parts) < 2 || len(parts) > 3 {
		return nil, false
	}
	hostname := ""
	if len(parts) == 3 {
		hostname, parts = parts[0], parts[1:]
	}
	service, err := s.services.Services(parts[1]).Get(parts[0])
	if err != nil {
		return nil, false
	}
	if service.Spec.ClusterIP != corev1.ClusterIPNone {
		return appendIPv4(nil, service.Spec.ClusterIP), hostname == ""
	}
	addresses := s.endpoints(service, hostname)
	return addresses, hostname == "" || len(addresses) > 0
}

func (s *server) endpoints(service *corev1.Service, hostname string) [][4]byte {
	ofService := labels.Set{discoveryv1.LabelServiceName: service.Name}.AsSelector()
	slices, err := s.slices.EndpointSlices(service.Namespace).List(ofService)
	if err != nil {
		return nil
	}
	var addresses [][4]byte
	for _, slice := range slices {
		for _, endpoint := range slice.Endpoints {
			ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
			named := endpoint.Hostname != nil && *endpoint.Hostname == hostname
			if !(ready || service.Spec.PublishNotReadyAddresses) || (hostname != "" && !named) {
				continue
			}
			for _, address := range endpoint.Addresses {
				addresses = appendIPv4(addresses, address)
			}
		}
	}
	return addresses
}

func appendIPv4(addresses [][4]byte, text string) [][4]byte {
	if v4 := net.ParseIP(text).To4(); v4 != nil {
		addresses = append(addresses, [4]byte(v4))
	}
	return addresses
}
