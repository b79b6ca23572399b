package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/domain/weights"
)

// baseDirectory is the directory, below that of an adapter, to which --with-base downloads the base
// model.
const baseDirectory = "base"

// completeAdapter makes the files of a downloaded adapter usable without the server: it names the
// base model in adapter_config.json, where PEFT's from_pretrained methods look for it, and downloads
// the base model if withBase is set. It returns the paths of the files that it downloads. It does
// nothing for a full model.
func completeAdapter(c *cobra.Command, client *client, name, dir string, withBase bool) (files []string, err error) {
	config := filepath.Join(dir, weights.AdapterConfigFile)
	data, err := os.ReadFile(config)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	model, err := getModel(c.Context(), client, name)
	if err != nil || model.Kind != domain.PEFTAddon {
		return nil, err
	}
	base := ""
	if withBase {
		if base, err = filepath.Abs(filepath.Join(dir, baseDirectory)); err != nil {
			return nil, err
		}
		resource, err := getModel(c.Context(), client, model.BaseModel)
		if err != nil {
			return nil, fmt.Errorf("the base model of %s cannot be read: %w", name, err)
		}
		p := newProgress(c, map[string]int64{resource.Name: resource.bytes()})
		if files, err = downloadSome(c, client, "/v1/"+resource.Name+":getDownloadEndpoint", nil,
			filepath.Join(dir, baseDirectory), nil, p); err != nil {
			return nil, err
		}
	}
	named, err := weights.NameBase(data, base, id(model.BaseModel))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if named == nil {
		return files, nil
	}
	return files, replaceFile(config, named)
}

// replaceFile replaces a file, completely or not at all.
func replaceFile(path string, data []byte) error {
	part := path + ".part"
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return err
	}
	return os.Rename(part, path)
}
