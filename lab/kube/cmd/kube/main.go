// Command kube is every Kubernetes command that the lab keeps running, in one binary, so that they share one link step
// and one cache entry.
//
// It picks the command by the name it was started as (a link named kubelet is the kubelet), or by its first argument
// when it was started as kube.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"genesis-precision/lab/kube/internal/dns"
	"genesis-precision/lab/kube/internal/standing"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllers "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	proxy "k8s.io/kubernetes/cmd/kube-proxy/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

var commands = map[string]func() *cobra.Command{
	"kstatus":                 standing.NewCommand,
	"kube-apiserver":          apiserver.NewAPIServerCommand,
	"kube-controller-manager": controllers.NewControllerManagerCommand,
	"kube-proxy":              proxy.NewProxyCommand,
	"kube-scheduler":          func() *cobra.Command { return scheduler.NewSchedulerCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"lab-dns":                 dns.NewCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" && len(os.Args) > 1 {
		// etcd reads os.Args itself, so the shift must happen there.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	if name == "etcd" {
		etcdmain.Main(os.Args)
		return
	}
	build, known := commands[name]
	if !known {
		names := []string{"etcd"}
		for command := range commands {
			names = append(names, command)
		}
		fmt.Fprintf(os.Stderr, "kube: unknown command %q; expected one of %s\n", name, strings.Join(names, ", "))
		os.Exit(2)
	}
	os.Exit(cli.Run(build()))
}
