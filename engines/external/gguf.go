package external

import (
	"os"
	"path/filepath"
	"strings"

	"anneal/domain"
)

// files finds what the server reads of the model, which may have to be written
// first: into own.
func (c completer) files(at *place, own string) error {
	if !c.preset.readsGGUF && !c.template.says(wordGGUF) {
		return nil
	}
	file, err := findGGUF(at.dir)
	if err != nil {
		return err
	}
	if file == "" {
		if c.options.ToGGUF == nil {
			return domain.Errorf(domain.FailedPrecondition, "the model has no GGUF file, which the node's engine reads: upload one with the model, or deploy it where another engine runs")
		}
		file = filepath.Join(own, "model.gguf")
		if err := c.options.ToGGUF(at.dir, file); err != nil {
			return err
		}
	}
	at.gguf = file
	if at.adapter == "" {
		return nil
	}
	if at.adapter, err = findGGUF(at.adapter); err == nil && at.adapter == "" {
		err = domain.Errorf(domain.FailedPrecondition, "the adapter has no GGUF file, which the node's engine reads: upload one with it, or deploy it where another engine runs")
	}
	return err
}

// findGGUF is the GGUF file of a folder, the first of its parts when it has
// several, or "".
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
	return "", domain.Errorf(domain.FailedPrecondition, "the model has several GGUF files (%s): keep the one that is to be served", strings.Join(found, ", "))
}
