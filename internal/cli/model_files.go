package cli

import (
	"context"
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

// modelFiles are the files in a local directory of a model, or of the code of an evaluator.
type modelFiles struct {
	dir   string
	kind  string
	sizes map[string]int64 // in bytes, by file name
}

// openModelFiles reads a directory and validates it before anything is uploaded. Only the server
// compares an adapter with its base model.
func openModelFiles(dir, base string) (modelFiles, error) {
	folder, err := readModelFiles(dir)
	if err != nil {
		return folder, err
	}
	if folder.kind == domain.PEFTAddon {
		if base == "" {
			return folder, usage.Errorf("%s contains an adapter: give its base model with --base-model", dir)
		}
		return folder, nil
	}
	report, err := weights.Check(folder.contents())
	if err != nil {
		return folder, err
	}
	return folder, folder.invalid(report.Violations)
}

// readModelFiles lists the files of a directory that belong to a model: those at the top level that
// are not hidden. Of files with weights these are those that the model refers to, and GGUF files.
func readModelFiles(dir string) (modelFiles, error) {
	folder := modelFiles{dir: dir, kind: domain.BaseModel, sizes: map[string]int64{}}
	if err := folder.list("", false); err != nil {
		return folder, err
	}
	if _, ok := folder.sizes["adapter_config.json"]; ok {
		folder.kind = domain.PEFTAddon
	}
	needed, err := folder.contents().WeightFiles()
	if weights.IsBroken(err) {
		return folder, nil // the validation reports it
	}
	if err != nil {
		return folder, err
	}
	whole := !slices.ContainsFunc(needed, func(name string) bool { return folder.sizes[name] == 0 })
	maps.DeleteFunc(folder.sizes, func(name string, _ int64) bool {
		return whole && weights.HoldsWeights(name) && !strings.HasSuffix(name, ".gguf") && !slices.Contains(needed, name)
	})
	return folder, nil
}

// listSpeechFiles lists the files of a speech model, including those in subdirectories.
func listSpeechFiles(dir string) (modelFiles, error) {
	folder := modelFiles{dir: dir, kind: domain.SpeechModel, sizes: map[string]int64{}}
	return folder, folder.list("", true)
}

// readSpeechFiles also validates that the files of a format exist.
func readSpeechFiles(dir, format string) (modelFiles, error) {
	folder, err := listSpeechFiles(dir)
	if err != nil {
		return folder, err
	}
	settings := domain.SpeechSettings{Format: format}
	return folder, folder.invalid(settings.CheckFiles(domain.Files{Sizes: folder.sizes}))
}

// list adds the files of the directory, or of a subdirectory, that are neither hidden nor empty.
func (f modelFiles) list(below string, folders bool) error {
	entries, err := os.ReadDir(filepath.Join(f.dir, below))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(below, entry.Name())
		info, err := os.Stat(filepath.Join(f.dir, name)) // follows links
		switch {
		case err != nil:
			return err
		case strings.HasPrefix(entry.Name(), "."):
		case info.IsDir() && folders:
			if err := f.list(name, false); err != nil {
				return err
			}
		case info.Mode().IsRegular() && info.Size() > 0:
			f.sizes[name] = info.Size()
		}
	}
	if below == "" && len(f.sizes) == 0 {
		return fmt.Errorf("%s contains no files", f.dir)
	}
	return nil
}

// invalid returns the violations of a directory as an error; nil if there are none.
func (f modelFiles) invalid(violations domain.Violations) error {
	if len(violations) == 0 {
		return nil
	}
	list := make([]violation, len(violations))
	for i, v := range violations {
		list[i] = violation{v.Field, v.Description}
	}
	message := fmt.Sprintf("%s is not a valid model:", f.dir) + listViolations(list, func(field string) string { return field })
	return errors.New(message)
}

// contents returns the directory as the validation reads it.
func (f modelFiles) contents() weights.Folder {
	return weights.Folder{Sizes: f.sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
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

// putFiles uploads every file to the signed URL that the resource has for it.
func putFiles(cmd *cobra.Command, c *client, name string, folder modelFiles) error {
	var endpoint struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	body := map[string]any{"filenameToSize": folder.sizes}
	if err := c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":getUploadEndpoint", nil, body, &endpoint); err != nil {
		return err
	}
	p := newProgress(cmd, folder.sizes)
	for _, file := range folder.names() {
		if err := folder.send(cmd.Context(), c, file, endpoint.URLs[file], p); err != nil {
			p.clear()
			return err
		}
	}
	return nil
}

// send uploads a file to a signed URL.
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
