package external

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/enginetest"
)

// showing returns a conversation with two images between texts.
func showing() engines.CompletionRequest {
	return engines.CompletionRequest{MaxTokens: 200, Chat: &engines.Chat{Messages: []engines.Message{
		{Role: "system", Content: "be brief"},
		{Role: "user", Parts: []engines.Part{{Text: "compare "}, {Image: testImage(3, 5)}, {Text: " and "},
			{Image: testImage(7, 2)}}}}}}
}

// loadWith loads a model, with a projector if projector is true.
func loadWith(t *testing.T, preset, mode string, projector bool, change ...func(*Options)) *model {
	o := unconfined(options(t, preset, mode))
	for _, one := range change {
		one(&o)
	}
	c, err := New(o)
	require.NoError(t, err)
	in := files(t)
	if projector {
		require.NoError(t, os.WriteFile(filepath.Join(in.Dir, "mmproj-model-f16.gguf"), nil, 0o600))
	}
	m, err := c.Load(t.Context(), in)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	if with, ok := m.(loader); ok {
		return with.model
	}
	return m.(*model)
}

// TestImagesOfMessages checks that servers receive the images in their places, and that usage counts
// what the server reports.
func TestImagesOfMessages(t *testing.T) {
	plain := engines.CompletionRequest{MaxTokens: 200, Chat: &engines.Chat{Messages: []engines.Message{
		{Role: "system", Content: "be brief"}, {Role: "user", Content: "compare [3x5] and [7x2]"}}}}
	for _, preset := range Presets() {
		t.Run(preset, func(t *testing.T) {
			m := loadWith(t, preset, "", true)
			req := showing()
			require.NoError(t, m.CheckImages(&req))
			want := mustComplete(t, m, plain)
			got := mustComplete(t, m, req)
			require.Equal(t, want.Text, got.Text, "the simulated model echoes what it was shown")
			require.Equal(t, want.Usage.PromptTokens, got.Usage.PromptTokens)
			require.NotZero(t, got.Usage.PromptTokens)
		})
	}
}

// TestImagesOfPrompts checks completions with images, which only llama.cpp's server has.
func TestImagesOfPrompts(t *testing.T) {
	req := engines.CompletionRequest{Prompt: "see <image>, then <image>.", MaxTokens: 20,
		Images: []*engines.Image{testImage(3, 5), testImage(7, 2)}}
	m := loadWith(t, LlamaCpp, "", true)
	require.NoError(t, m.CheckImages(&req))
	want := mustComplete(t, m, engines.CompletionRequest{Prompt: "see [3x5], then [7x2].", MaxTokens: 20})
	got := mustComplete(t, m, req)
	require.Equal(t, want.Text, got.Text)
	require.Equal(t, want.Finish, got.Finish)
	require.Equal(t, want.Usage.PromptTokens, got.Usage.PromptTokens)
	require.Equal(t, want.Usage.CompletionTokens, got.Usage.CompletionTokens)
	require.Equal(t, 1, got.Usage.CachedTokens)

	req.Prompt = "see <image>."
	req.Images, req.MaxTokens = req.Images[:1], 0
	got = mustComplete(t, m, req)
	require.Empty(t, got.Text)
	require.Positive(t, got.Usage.PromptTokens, "the tokens are counted")

	req.Logprobs, req.ReturnTokenIDs, req.Echo = true, true, true
	_, err := enginetest.Complete(t, m, req)
	for _, field := range []string{"logprobs", "returnTokenIds", "echo"} {
		require.ErrorContains(t, err, field)
	}
	_, err = enginetest.Complete(t, m, engines.CompletionRequest{PromptTokens: []int{1, 2}, MaxTokens: 1})
	require.ErrorContains(t, err, "promptTokens: must be text")

	for _, preset := range []string{VLLM, OpenAI} {
		err = loadWith(t, preset, "", false).CheckImages(&req)
		require.ErrorContains(t, err, "images[0]: is not supported by the node's engine for completions")
	}
}

// TestModelsWithoutVision checks the errors of servers that cannot read images.
func TestModelsWithoutVision(t *testing.T) {
	req := showing()
	err := loadWith(t, LlamaCpp, "", false).CheckImages(&req)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.ErrorContains(t, err, "messages[1].content[1]: is an image, which llama.cpp's server reads only with a "+
		"multimodal projector")
	err = loadWith(t, LlamaCpp, "", true, func(o *Options) {
		o.Command = strings.ReplaceAll(o.Command, wordProjector, "")
	}).CheckImages(&req)
	require.ErrorContains(t, err, "its command line must have {projector}")
	_, err = enginetest.Complete(t, loadWith(t, VLLM, "textOnly", false), req)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	require.ErrorContains(t, err, "not a multimodal model")
}
