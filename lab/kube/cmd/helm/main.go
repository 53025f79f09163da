// Command helm is a program of its own for the same reason as kubectl: it starts often, and is done soon.
package main

import (
	"fmt"
	"os"

	helm "helm.sh/helm/v4/pkg/cmd"
)

func main() {
	root, err := helm.NewRootCmd(os.Stdout, os.Args[1:], helm.SetupLogging)
	if err == nil {
		err = root.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}
