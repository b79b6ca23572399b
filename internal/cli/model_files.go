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

// modelFiles are a folder of this machine whose files make a model, or the
// code of an evaluator.
type modelFiles struct {
	dir   string
	kind  string
	sizes map[string]int64 // bytes, by name; of what belongs to the model
}

// openModelFiles reads a folder and finds what is wrong with it before
// anything is sent. An adapter is held against its base by the server alone.
func openModelFiles(dir, base string) (modelFiles, error) {
	folder, err := readModelFiles(dir)
	if err != nil {
		return folder, err
	}
	if folder.kind == domain.PEFTAddon {
		if base == "" {
			return folder, usage.Errorf("%s holds an adapter: name the model that it is for with --base-model", dir)
		}
		return folder, nil
	}
	report, err := weights.Check(folder.contents())
	if err != nil {
		return folder, err
	}
	return folder, folder.broken(report.Violations)
}

// readModelFiles lists the files of a folder that belong to a model: those at
// its top that are not hidden, and of the files with weights those that the
// model is made of, and the GGUF files that some engines read instead.
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
		return folder, nil // the check says what is wrong
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

// listSpeechFiles lists the files of a folder that holds a speech model, and
// those of the folders in it.
func listSpeechFiles(dir string) (modelFiles, error) {
	folder := modelFiles{dir: dir, kind: domain.SpeechModel, sizes: map[string]int64{}}
	return folder, folder.list("", true)
}

// readSpeechFiles also finds what a format misses.
func readSpeechFiles(dir, format string) (modelFiles, error) {
	folder, err := listSpeechFiles(dir)
	if err != nil {
		return folder, err
	}
	settings := domain.SpeechSettings{Format: format}
	return folder, folder.broken(settings.CheckFiles(domain.Files{Sizes: folder.sizes}))
}

// list takes in the files of the folder, or of one in it, that are not hidden
// and not empty.
func (f modelFiles) list(below string, folders bool) error {
	entries, err := os.ReadDir(filepath.Join(f.dir, below))
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := path.Join(below, entry.Name())
		info, err := os.Stat(filepath.Join(f.dir, name)) // what a link leads to
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
		return fmt.Errorf("%s has no files", f.dir)
	}
	return nil
}

// broken is what is wrong with a folder; nil when nothing is.
func (f modelFiles) broken(violations domain.Violations) error {
	if len(violations) == 0 {
		return nil
	}
	message := fmt.Sprintf("%s is no model that can be used:", f.dir)
	for _, v := range violations[:min(len(violations), maxViolations)] {
		message += "\n  " + v.Field + ": " + v.Description
	}
	if more := len(violations) - maxViolations; more > 0 {
		message += fmt.Sprintf("\n  and %d more", more)
	}
	return errors.New(message)
}

// contents is the folder as its files are read.
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

// putFiles puts every file to the signed URL that the resource has for it.
func (c *client) putFiles(cmd *cobra.Command, name string, folder modelFiles) error {
	var answer struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	body := map[string]any{"filenameToSize": folder.sizes}
	if err := c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":getUploadEndpoint", nil, body, &answer); err != nil {
		return err
	}
	p := newProgress(cmd, folder.sizes)
	for _, file := range folder.names() {
		if err := folder.send(cmd.Context(), c, file, answer.URLs[file], p); err != nil {
			p.clear()
			return err
		}
	}
	return nil
}

// send puts one file to a signed URL.
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
