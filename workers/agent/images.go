package agent

import (
	"context"
	"os"
	"path/filepath"
	"time"

	"anneal/engines"
	"anneal/workers/protocol"
)

// imageTimeout is how long the download of an image is retried.
const imageTimeout = 20 * time.Second

// readImages downloads the images of a request into req. It returns an error when the model cannot
// read images.
func (r *replica) readImages(ctx context.Context, model engines.Model, req *engines.CompletionRequest) error {
	if !req.HasImages() {
		return nil
	}
	reader, ok := model.(engines.ImageReader)
	if !ok {
		return engines.ImagesError(req, "is an image, which the engine "+r.agent.options.Engine.Name+
			" of the model's node cannot read: send text only, or deploy the model to nodes with the engine vllm or "+
			"llama.cpp")
	}
	if err := reader.CheckImages(req); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.agent.workDir(), "images-")
	if err != nil {
		return diskError(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "image")
	for at, image := range req.AllImages() {
		file := protocol.File{Name: at, Size: image.Size, URL: image.URL}
		err := retry(ctx, time.Now().Add(imageTimeout), func() error { return r.agent.files.get(ctx, file, path) })
		if err != nil {
			return err
		}
		if image.Data, err = os.ReadFile(path); err != nil {
			return err
		}
	}
	return nil
}
