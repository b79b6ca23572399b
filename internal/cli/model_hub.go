package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/internal/hub"
	"anneal/internal/usage"
)

// A hubSource is the model on a hub that the flags of a command select.
type hubSource struct {
	from    string // name of the model: hf://ORG/NAME[@REVISION]
	url     string
	include []string
}

func (s *hubSource) flags(f *pflag.FlagSet) {
	f.StringVar(&s.from, "from", "", "`MODEL` on a hub, as hf://ORG/NAME[@REVISION]; its files are downloaded first, "+
		"with HF_TOKEN as the access token")
	f.StringVar(&s.url, "hub", "",
		"`ADDRESS` of the hub, which has the API of the Hugging Face Hub (default $HF_ENDPOINT, "+
			"or "+hub.DefaultURL+")")
	f.StringSliceVar(&s.include, "include", nil, "`PATTERNS` of the files to download with --from, such as '*Q8_0.gguf' "+
		"(default the safetensors files or the GGUF file, with configuration and tokenizer)")
}

// mustBeNew returns an error if the model id is already READY, so that nothing is downloaded for
// it.
func mustBeNew(ctx context.Context, c *client, id string) error {
	var model struct{ State string }
	var refused *apiError
	switch err := c.call(ctx, http.MethodGet, "/v1/"+c.name("models", id), nil, nil, &model); {
	case errors.As(err, &refused) && refused.Status == http.StatusNotFound:
		return nil
	case err != nil:
		return err
	case model.State == "READY":
		return withHint(fmt.Errorf("model %s already exists", id),
			"choose another ID, or delete the model with `anneal model "+
				"delete "+id+"`")
	}
	return nil
}

// A hubDownload is a directory with the files of a model that were downloaded from a hub.
type hubDownload struct {
	dir  string
	name string // name of the model with its commit
}

// open downloads the files of the model to the user's cache directory. If speech is true, it
// downloads all files, which a speech model needs.
func (s *hubSource) open(c *cobra.Command, speech bool) (hubDownload, error) {
	ref, err := hub.ParseRef(s.from)
	if err != nil {
		return hubDownload{}, usage.Errorf("--from: %v", err)
	}
	address := strings.TrimRight(cmp.Or(s.url, os.Getenv("HF_ENDPOINT"), hub.DefaultURL), "/")
	if !strings.HasPrefix(address, "https://") && !strings.HasPrefix(address, "http://") {
		return hubDownload{}, usage.Errorf("--hub %q must begin with https:// or http://", address)
	}
	server := &hub.Hub{URL: address, Token: os.Getenv("HF_TOKEN"), Client: http.DefaultClient}
	model, err := server.Model(c.Context(), ref)
	if err != nil {
		return hubDownload{}, err
	}
	if speech && len(s.include) == 0 {
		s.include = []string{"*"}
	}
	files, err := model.Choose(s.include)
	if err != nil {
		return hubDownload{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return hubDownload{}, err
	}
	d := hubDownload{filepath.Join(cache, "anneal", "hub", strings.ReplaceAll(model.Repo, "/", "--"), model.Commit),
		model.Name()}
	if err := d.fetch(c, server, model, files); err != nil {
		return d, onInterrupt(c, withHint(err, "run the command again: it continues with the files in "+d.dir),
			"The downloaded files are kept in %s; run the same command again to continue.", d.dir)
	}
	return d, nil
}

// fetch downloads files of a model and shows the progress.
func (d hubDownload) fetch(c *cobra.Command, server *hub.Hub, model hub.Model, files []hub.File) error {
	sizes := map[string]int64{}
	total := int64(0)
	for _, f := range files {
		sizes[f.Name] = f.Size
		total += f.Size
	}
	fmt.Fprintf(c.ErrOrStderr(), "downloading %s: %d files, %s\n", d.name, len(files), inBytes(total))
	p := newProgress(c, sizes)
	for _, f := range files {
		if err := server.Download(c.Context(), model, f, d.dir, func(n int64) { p.add(f.Name, n) }); err != nil {
			p.clear()
			return err
		}
		p.done(f.Name)
	}
	return nil
}

// remove deletes the directory, when the server has the files.
func (d hubDownload) remove() error {
	if d.dir == "" {
		return nil
	}
	return os.RemoveAll(d.dir)
}
