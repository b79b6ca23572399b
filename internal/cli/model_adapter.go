package cli

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/domain/weights"
)

// baseDirectory is the subdirectory of an adapter to which --with-base downloads the base model.
const baseDirectory = "base"

// completeAdapter makes a downloaded adapter usable without the server. It writes the name of the
// base model to adapter_config.json, where PEFT's from_pretrained looks for it. If withBase is
// true, it also downloads the base model, and returns the paths of the files. It does nothing for a
// model that is not an adapter.
func (d download) completeAdapter(c *cobra.Command, client *client, name string, withBase bool) (files []string,
	err error) {
	config := filepath.Join(d.dir, weights.AdapterConfigFile)
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
		d.dir, d.query = filepath.Join(d.dir, baseDirectory), nil
		if base, err = filepath.Abs(d.dir); err != nil {
			return nil, err
		}
		resource, err := getModel(c.Context(), client, model.BaseModel)
		if err != nil {
			return nil, fmt.Errorf("the base model of %s cannot be read: %w", name, err)
		}
		d.progress = newProgress(c, map[string]int64{resource.Name: resource.bytes()})
		if files, err = d.run(c, client, "/v1/"+resource.Name+":getDownloadEndpoint"); err != nil {
			return nil, err
		}
	}
	named, err := weights.SetBaseModel(data, base, id(model.BaseModel))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", config, err)
	}
	if named == nil {
		return files, nil
	}
	return files, replaceFile(config, named)
}
