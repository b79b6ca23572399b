package external

import (
	"os"
	"path/filepath"
	"strings"

	"anneal/domain"
)

// findFiles sets the GGUF files of the model, its projector, its draft model and its adapter in
// args. It does nothing for servers that do not read GGUF. If a model has no GGUF file, findFiles
// converts it to one in own, the directory for generated files. An adapter must have a GGUF file.
func (c completer) findFiles(args *arguments, own string) error {
	if !c.preset.readsGGUF && !c.template.contains(wordGGUF) {
		return nil
	}
	file, err := c.ggufOf(args.dir, filepath.Join(own, "model.gguf"))
	if err != nil {
		return err
	}
	args.gguf = file
	if args.projector, err = findProjector(args.dir); err != nil {
		return err
	}
	if args.draft != "" {
		if args.draft, err = c.ggufOf(args.draft, filepath.Join(own, "draft.gguf")); err != nil {
			return err
		}
	}
	if args.adapter == "" {
		return nil
	}
	if args.adapter, err = findGGUF(args.adapter); err == nil && args.adapter == "" {
		err = domain.Errorf(domain.FailedPrecondition,
			"the adapter has no GGUF file, which the node's engine requires: upload one with the adapter, or deploy it to "+
				"nodes with another engine")
	}
	return err
}

// ggufOf returns the GGUF file in the directory of a model. If there is none, it converts the model
// to the file converted, and returns that.
func (c completer) ggufOf(dir, converted string) (string, error) {
	file, err := findGGUF(dir)
	if err != nil || file != "" {
		return file, err
	}
	if c.options.ToGGUF == nil {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the model has no GGUF file, which the node's engine requires: upload one with the model, or deploy the model "+
				"to nodes with another engine")
	}
	return converted, c.options.ToGGUF(dir, converted)
}

// findGGUF returns the GGUF file in a directory; "" if there is none. If the model is split into
// several files, it returns the first, from which servers find the others.
func findGGUF(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	var found []string
	for _, entry := range entries {
		name := entry.Name()
		part := strings.Contains(name, "-of-") && !strings.Contains(name, "-00001-of-")
		if strings.HasSuffix(name, ".gguf") && !strings.HasPrefix(name, "mmproj") && !part {
			found = append(found, name)
		}
	}
	switch len(found) {
	case 0:
		return "", nil
	case 1:
		return filepath.Join(dir, found[0]), nil
	}
	return "", domain.Errorf(domain.FailedPrecondition,
		"the directory of the model or adapter has several GGUF files (%s): keep only one", strings.Join(found, ", "))
}
