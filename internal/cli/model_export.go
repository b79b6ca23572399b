package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"anneal/engines/embedded/gguf"
	"anneal/internal/usage"
)

func modelExport() *cobra.Command {
	var target, kind, dir string
	c := &cobra.Command{Use: "export ID --gguf FILE", Short: "Export a model as a GGUF file, for llama.cpp", Args: arguments(1, 1),
		Example: "  anneal model export polite --gguf polite.gguf --type q8_0\n  anneal model export tiny --dir ./tiny-llama --gguf tiny.gguf",
		RunE: func(c *cobra.Command, args []string) error {
			if target == "" {
				return required("gguf")
			}
			as, err := gguf.ParseType(kind)
			if err != nil {
				return usage.Errorf("--%w", err)
			}
			if dir == "" {
				client, err := newClient(c)
				if err != nil {
					return err
				}
				if dir, err = os.MkdirTemp(filepath.Dir(target), ".anneal-export-"); err != nil {
					return err
				}
				defer os.RemoveAll(dir)
				if _, err := download(c, client, "/v1/"+client.name("models", args[0])+":getDownloadEndpoint", nil, dir); err != nil {
					return err
				}
			}
			if err := exportFile(c.Context(), target, dir, id(args[0]), as); err != nil {
				return err
			}
			return printDone(c, "model", args[0], "exported as "+target)
		}}
	f := c.Flags()
	f.StringVar(&target, "gguf", "", "file to write")
	f.StringVar(&kind, "type", "f16", "type of matrices: f32, f16, bf16 or q8_0 (vectors are f32)")
	f.StringVar(&dir, "dir", "", "directory with a model to export, instead of a model of the server")
	return c
}

// exportFile writes a GGUF file, completely or not at all.
func exportFile(ctx context.Context, target, dir, name string, as gguf.Type) (err error) {
	part := target + ".part"
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	err = errors.Join(gguf.Export(f, dir, name, as), f.Close(), ctx.Err())
	if err != nil {
		return errors.Join(err, os.Remove(part))
	}
	return os.Rename(part, target)
}
