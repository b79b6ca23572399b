package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/internal/usage"
)

// modelFiles are the files that are uploaded from a local directory: of a model, or of an
// evaluator's code.
type modelFiles struct {
	dir   string
	kind  string
	sizes map[string]int64 // size in bytes, by path in the directory
}

// openModelFiles returns the files of the model in dir. It validates them as the server does, so
// that nothing invalid is uploaded. base is the base model of an adapter; only the server compares
// the two.
func openModelFiles(dir, base string) (modelFiles, error) {
	files, err := readModelFiles(dir)
	if err != nil {
		return files, err
	}
	if files.kind == domain.PEFTAddon {
		if base == "" {
			return files, usage.Errorf("%s contains an adapter: give its base model with --base-model", dir)
		}
		return files, nil
	}
	report, err := weights.Check(files.contents())
	if err != nil {
		return files, err
	}
	return files, files.invalid(report.Violations)
}

// readModelFiles lists the files of a model in dir: those at the top level that are not hidden. A
// file with weights belongs to the model only if the index of the weights names it, or if it is a
// GGUF file.
func readModelFiles(dir string) (modelFiles, error) {
	files := modelFiles{dir: dir, kind: domain.BaseModel, sizes: map[string]int64{}}
	if err := files.list("", false); err != nil {
		return files, err
	}
	if err := files.listModules(); err != nil {
		return files, err
	}
	if _, ok := files.sizes["adapter_config.json"]; ok {
		files.kind = domain.PEFTAddon
	}
	needed, err := files.contents().WeightFiles()
	if weights.IsInvalid(err) {
		return files, nil // the validation that follows reports this error
	}
	if err != nil {
		return files, err
	}
	whole := !slices.ContainsFunc(needed, func(name string) bool { return files.sizes[name] == 0 })
	maps.DeleteFunc(files.sizes, func(name string, _ int64) bool {
		return whole && weights.IsWeightsFile(name) && !strings.HasSuffix(name, ".gguf") && !slices.Contains(needed, name)
	})
	return files, nil
}

// listSpeechFiles lists the files of a speech model in dir and its subdirectories.
func listSpeechFiles(dir string) (modelFiles, error) {
	files := modelFiles{dir: dir, kind: domain.SpeechModel, sizes: map[string]int64{}}
	return files, files.list("", true)
}

// readSpeechFiles lists the files of a speech model in dir, and returns an error if files that the
// format requires are missing.
func readSpeechFiles(dir, format string) (modelFiles, error) {
	files, err := listSpeechFiles(dir)
	if err != nil {
		return files, err
	}
	settings := domain.SpeechSettings{Format: format}
	return files, files.invalid(settings.CheckFiles(domain.Files{Sizes: files.sizes}))
}

// list adds the files of the directory, or of its subdirectory below, that are neither hidden nor
// empty. If subdirs is true, it adds those in subdirectories too.
func (f modelFiles) list(below string, subdirs bool) error {
	entries, err := os.ReadDir(filepath.Join(f.dir, below))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(below, entry.Name())
		info, err := os.Stat(filepath.Join(f.dir, name)) // Stat follows symbolic links
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(entry.Name(), "."):
		case info.IsDir() && subdirs:
			if err := f.list(name, false); err != nil {
				return err
			}
		case info.Mode().IsRegular() && info.Size() > 0:
			f.sizes[name] = info.Size()
		}
	}
	if below == "" && len(f.sizes) == 0 {
		return fmt.Errorf("%s contains no files: hidden and empty files are not uploaded", f.dir)
	}
	return nil
}

// listModules adds the files of a sentence-transformers model that are in subdirectories.
// modules.json names the subdirectories.
func (f modelFiles) listModules() error {
	if f.sizes["modules.json"] == 0 {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(f.dir, "modules.json"))
	if err != nil {
		return err
	}
	var modules []struct{ Path string }
	if err := json.Unmarshal(data, &modules); err != nil {
		return fmt.Errorf("parse %s: %w", filepath.Join(f.dir, "modules.json"), err)
	}
	for _, one := range modules {
		if info, err := os.Stat(filepath.Join(f.dir, one.Path)); one.Path == "" || !filepath.IsLocal(one.Path) ||
			err != nil || !info.IsDir() { // a module without files, such as Normalize, may have no subdirectory
			continue
		}
		if err := f.list(one.Path, false); err != nil {
			return err
		}
	}
	return nil
}

// invalid returns the error of a directory with these violations; nil if there are none.
func (f modelFiles) invalid(violations domain.Violations) error {
	if len(violations) == 0 {
		return nil
	}
	list := make([]violation, len(violations))
	for i, v := range violations {
		list[i] = violation{v.Field, v.Description}
	}
	message := fmt.Sprintf("%s is not a valid model:", f.dir) +
		listViolations(list, func(field string) string { return field })
	return errors.New(message)
}

// contents returns the directory in the form that the validation takes.
func (f modelFiles) contents() weights.Directory {
	return weights.Directory{Sizes: f.sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		file, err := os.Open(filepath.Join(f.dir, name))
		if err != nil {
			return nil, err
		}
		if length < 0 {
			length = f.sizes[name] - offset
		}
		return struct {
			io.Reader
			io.Closer
		}{io.NewSectionReader(file, offset, length), file}, nil
	}}
}

func (f modelFiles) names() []string { return slices.Sorted(maps.Keys(f.sizes)) }

// putFiles uploads every file to the signed URL that the server returns for it.
func putFiles(cmd *cobra.Command, c *client, name string, files modelFiles) error {
	var endpoint struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	body := map[string]any{"filenameToSize": files.sizes}
	if err := c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":getUploadEndpoint", nil, body, &endpoint); err != nil {
		return err
	}
	p := newProgress(cmd, files.sizes)
	for _, file := range files.names() {
		if err := files.send(cmd.Context(), c, file, endpoint.URLs[file], p); err != nil {
			p.clear()
			return err
		}
	}
	return nil
}

// send uploads the file name to a signed URL, and reports the progress to p.
func (f modelFiles) send(ctx context.Context, c *client, name, link string, p *progress) error {
	file, err := os.Open(filepath.Join(f.dir, name))
	if err != nil {
		return err
	}
	defer file.Close()
	size := f.sizes[name]
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, link, p.of(name, io.LimitReader(file, size)))
	if err != nil {
		return err
	}
	req.ContentLength = size
	res, err := c.send(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return fmt.Errorf("%s: %w", name, readError(res))
	}
	p.done(name)
	return nil
}
