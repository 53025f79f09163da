package dns

import (
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

func newServer(t *testing.T) *server {
	t.Helper()
	services := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	slices := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	service := func(name, address string) *corev1.Service {
		return &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: address},
		}
	}
	rank := "rank-0"
	objects := []*corev1.Service{service("web", "10.96.1.2"), service("ranks", corev1.ClusterIPNone)}
	for _, object := range objects {
		if err := services.Add(object); err != nil {
			t.Fatal(err)
		}
	}
	err := slices.Add(&discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ml", Name: "ranks-1", Labels: map[string]string{discoveryv1.LabelServiceName: "ranks"},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.244.0.7"}, Hostname: &rank},
			{Addresses: []string{"10.244.0.8"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return &server{services: corelisters.NewServiceLister(services), slices: discoverylisters.NewEndpointSliceLister(slices)}
}

func TestAnswers(t *testing.T) {
	for _, test := range []struct {
		name    string
		kind    dnsmessage.Type
		code    dnsmessage.RCode
		answers int
	}{
		{"web.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"WEB.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"web.ml.svc.cluster.local.", dnsmessage.TypeAAAA, dnsmessage.RCodeSuccess, 0},
		{"ranks.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 2},
		{"rank-0.ranks.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeSuccess, 1},
		{"rank-9.ranks.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"none.ml.svc.cluster.local.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
		{"example.org.", dnsmessage.TypeA, dnsmessage.RCodeNameError, 0},
	} {
		query := dnsmessage.Message{
			Header:    dnsmessage.Header{ID: 7},
			Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName(test.name), Type: test.kind, Class: dnsmessage.ClassINET}},
		}
		packed, err := query.Pack()
		if err != nil {
			t.Fatal(err)
		}
		answered, err := newServer(t).answer(packed)
		if err != nil {
			t.Fatal(err)
		}
		var reply dnsmessage.Message
		if err := reply.Unpack(answered); err != nil {
			t.Fatal(err)
		}
		if reply.ID != 7 || reply.RCode != test.code || len(reply.Answers) != test.answers {
			t.Errorf("%s %s: got %s and %d answers, want %s and %d",
				test.name, test.kind, reply.RCode, len(reply.Answers), test.code, test.answers)
		}
	}
}
