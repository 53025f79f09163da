// Command kubectl is a program of its own, not one of kube's commands: tests start it thousands of times, and what
// the other commands do before main takes longer than most of what kubectl is asked for.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	kubectl "k8s.io/kubectl/pkg/cmd"
)

func main() {
	os.Exit(cli.Run(kubectl.NewDefaultKubectlCommand()))
}
