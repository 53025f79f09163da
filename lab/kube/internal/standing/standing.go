// Package standing tells where an object stands by kstatus, the library that Flux, Helm and kpt ask.
package standing

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// NewCommand returns the command: an object as JSON on stdin, {"status", "message"} on stdout.
func NewCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "kstatus",
		Short: "Tell where the object on stdin stands, by kstatus",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			return tell(command.InOrStdin(), command.OutOrStdout())
		},
	}
}

func tell(in io.Reader, out io.Writer) error {
	body, err := io.ReadAll(in)
	if err != nil {
		return err
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(body); err != nil {
		return fmt.Errorf("expected an object as JSON: %w", err)
	}
	found, err := status.Compute(object)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(map[string]string{"status": found.Status.String(), "message": found.Message})
}
