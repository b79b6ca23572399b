package coordinator_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

// A seer is an engine whose models accept images. Their completions list the type, the size and the
// first bytes of each image.
type seer struct{ engines.Completer }

type seerModel struct{ engines.Model }

func (s seer) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	m, err := s.Completer.Load(ctx, files)
	return seerModel{m}, err
}

func (seerModel) CheckImages(req *engines.CompletionRequest) error {
	if req.MaxTokens == 0 {
		return engines.ImagesError(req, "is refused")
	}
	return nil
}

func (seerModel) Complete(_ context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	text := ""
	for at, one := range req.AllImages() {
		text += fmt.Sprintf("%s %s %d %.8s\n", at, one.Type, len(one.Data), one.Data)
	}
	return engines.Usage{PromptTokens: 600}, emit(engines.Chunk{Text: text, Finish: engines.FinishStop})
}

// TestImagesReachTheEngine checks that the node downloads images for an engine that accepts them,
// and refuses them for another engine.
func TestImagesReachTheEngine(t *testing.T) {
	c := startWithInputs(t)
	image := func(name, content string) *engines.Image {
		n := c.put("transient/acme/r/"+name, []byte(content))
		url, err := c.blobs.SignGet(t.Context(), "transient/acme/r/"+name, time.Hour)
		require.NoError(t, err)
		return &engines.Image{Type: "image/png", URL: url, Size: n}
	}
	req := engines.CompletionRequest{MaxTokens: 1, Chat: &engines.Chat{Messages: []engines.Message{
		{Role: "user", Parts: []engines.Part{{Text: "a"}, {Image: image("0", "first")}}},
		{Role: "user", Parts: []engines.Part{{Image: image("1", strings.Repeat("x", 2<<20))}}}}}}
	engine := simulated.New(simulated.Options{})
	engine.Completer = seer{engine.Completer}
	stop := c.agent("n1", engine)
	r := c.serving(c.deploy("n1").ID)
	complete := func() (text string, err error) {
		usage, err := c.replicas().Complete(t.Context(), deploymentName, r, req, func(chunk engines.Chunk) error {
			text += chunk.Text
			return nil
		})
		require.True(t, err != nil || usage.PromptTokens == 600)
		return text, err
	}
	text, err := complete()
	require.NoError(t, err)
	require.Equal(t, "messages[0].content[1] image/png 5 first\nmessages[1].content[0] image/png 2097152 "+
		"xxxxxxxx\n", text, "also images that are larger than a message")

	req.MaxTokens = 0
	_, err = complete()
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.ErrorContains(t, err, "messages[0].content[1]: is refused")

	req.MaxTokens = 1
	req.Chat.Messages[0].Parts[1].Image.URL += "0" // make the signature of the URL invalid
	_, err = complete()
	require.ErrorContains(t, err, "messages[0].content[1]")
	stop()

	c = start(t)
	c.createInputs()
	c.agent("n1", simulated.New(simulated.Options{}))
	r = c.serving(c.deploy("n1").ID)
	_, err = complete()
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.ErrorContains(t, err, "messages[0].content[1]: is an image, which the engine simulated of the model's node")
}
