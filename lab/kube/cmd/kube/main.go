// Command kube is every Kubernetes command the lab needs in one binary, so that they share one link step and one cache entry.
//
// It picks the command by the name it was started as (a link named kubectl is kubectl), or by its first argument
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
	helm "helm.sh/helm/v4/pkg/cmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
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
	"kubectl":                 func() *cobra.Command { return kubectl.NewDefaultKubectlCommand() },
	"kubelet":                 func() *cobra.Command { return kubelet.NewKubeletCommand(context.Background()) },
	"lab-dns":                 dns.NewCommand,
}

func main() {
	name := filepath.Base(os.Args[0])
	if name == "kube" && len(os.Args) > 1 {
		// kubectl and helm read os.Args themselves (plugins, logging), so the shift must happen there.
		os.Args = os.Args[1:]
		name = os.Args[0]
	}
	switch name {
	case "etcd":
		etcdmain.Main(os.Args)
	case "helm":
		os.Exit(runHelm())
	default:
		build, known := commands[name]
		if !known {
			names := []string{"etcd", "helm"}
			for command := range commands {
				names = append(names, command)
			}
			fmt.Fprintf(os.Stderr, "kube: unknown command %q; expected one of %s\n", name, strings.Join(names, ", "))
			os.Exit(2)
		}
		os.Exit(cli.Run(build()))
	}
}

func runHelm() int {
	root, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err == nil {
		err = root.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		return 1
	}
	return 0
}
