package external

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

var _ engines.ImageReader = (*model)(nil)

// CheckImages implements engines.ImageReader. llama.cpp's server reports whether it has loaded a
// multimodal projector. Other servers reject images that their model cannot read when they get
// them.
func (m *model) CheckImages(req *engines.CompletionRequest) error {
	if m.preset.noImages != "" {
		return engines.ImagesError(req, m.preset.noImages)
	}
	if req.Chat == nil && m.preset.imageCompletions == "" {
		return engines.ImagesError(req, "is not supported by the node's engine for completions: send the image in a "+
			"message to /inference/v1/chat/completions")
	}
	return nil
}

// checkTokens returns an error if the request has or requests token IDs that llama.cpp's server
// does not support with a projector.
func (m *model) checkTokens(req *engines.CompletionRequest) error {
	if m.preset.vision == nil || m.preset.noImages != "" {
		return nil
	}
	var v domain.Violations
	v.Require(req.PromptTokens == nil || req.Chat != nil, "promptTokens",
		"must be text: llama.cpp's server takes no token IDs for a model that reads images")
	v.Require(!req.ReturnTokenIDs || req.Chat == nil || !req.HasImages(), "returnTokenIds",
		"is not supported by llama.cpp's server for messages with images: leave it out")
	return v.Err()
}

// contentOf returns the content of a message for the server: a text, or a list of texts and images.
func contentOf(m engines.Message) any {
	if len(m.Parts) == 0 {
		return m.Content
	}
	parts := make([]body, len(m.Parts))
	for i, part := range m.Parts {
		if part.Image == nil {
			parts[i] = body{"type": "text", "text": part.Text}
			continue
		}
		url := "data:" + part.Image.Type + ";base64," + base64.StdEncoding.EncodeToString(part.Image.Data)
		parts[i] = body{"type": "image_url", "image_url": body{"url": url}}
	}
	return parts
}

// withoutImages returns the request without its images, because servers count the tokens of images
// only when they complete a request.
func withoutImages(req *engines.CompletionRequest) *engines.CompletionRequest {
	if req.Chat == nil || !req.HasImages() {
		return req
	}
	plain, chat := *req, *req.Chat
	chat.Messages = make([]engines.Message, len(req.Chat.Messages))
	for i, m := range req.Chat.Messages {
		for _, part := range m.Parts {
			m.Content += part.Text
		}
		m.Parts = nil
		chat.Messages[i] = m
	}
	plain.Chat = &chat
	return &plain
}

// defaultMarker stands for an image in prompts, unless llama.cpp's server reports another marker.
const defaultMarker = "<__media__>"

// imagePrompt replaces the fields of OpenAI's completions in b by those of llama.cpp's own path
// /completion, because its /v1/completions takes no images. It returns the path.
func (p *preset) imagePrompt(b body, req *engines.CompletionRequest, v *domain.Violations) string {
	const leave = "is not supported by llama.cpp's server for prompts with images: leave it out, or send messages"
	v.Require(!req.Logprobs, "logprobs", leave)
	v.Require(!req.ReturnTokenIDs, "returnTokenIds", leave)
	v.Require(!req.Echo && req.EchoLast == 0, "echo", leave)
	images := make([]string, len(req.Images))
	for i, image := range req.Images {
		images[i] = base64.StdEncoding.EncodeToString(image.Data)
	}
	b["prompt"] = body{"prompt_string": strings.ReplaceAll(req.Prompt, engines.ImagePlaceholder, p.mediaMarker),
		"multimodal_data": images}
	b["n_predict"] = b["max_tokens"]
	for _, name := range []string{"model", "stream_options", "max_tokens", "response_format"} {
		delete(b, name)
	}
	if req.Format != nil && req.Format.Type == engines.FormatJSON {
		b["json_schema"] = body{"type": "object"}
	} else if req.Format != nil && req.Format.Type == engines.FormatSchema {
		b["json_schema"] = req.Format.Schema
	}
	return p.imageCompletions
}

// A nativeEvent has the fields of an event of llama.cpp's path /completion.
type nativeEvent struct {
	Content  string `json:"content"`
	Stop     bool   `json:"stop"`      // this is the last event of the stream
	StopType string `json:"stop_type"` // in the last event: eos, word or limit
	Prompt   int    `json:"tokens_evaluated"`
	Tokens   int    `json:"tokens_predicted"`
	Timings  struct {
		Cached int `json:"cache_n"`
	} `json:"timings"`
}

// choice converts the event to a choice of OpenAI's completions. It returns false for an event
// without content, for example one that already has OpenAI's format.
func (e *nativeEvent) choice(s *stream) (choice, bool) {
	if !e.Stop {
		return choice{Text: e.Content}, e.Content != ""
	}
	s.ended = true
	s.count(&usage{PromptTokens: e.Prompt, CompletionTokens: e.Tokens})
	s.usage.CachedTokens = e.Timings.Cached
	finish := engines.FinishStop
	if e.StopType == "limit" {
		finish = engines.FinishLength
	}
	return choice{Text: e.Content, FinishReason: finish}, true
}

// findProjector returns the multimodal projector in the directory of a model; "" if there is none.
func findProjector(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return "", err
	}
	found := ""
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasPrefix(name, "mmproj") || !strings.HasSuffix(name, ".gguf") {
			continue
		}
		if found != "" {
			return "", domain.Errorf(domain.FailedPrecondition,
				"the model has several mmproj files (%s, %s): keep only one", filepath.Base(found), name)
		}
		found = filepath.Join(dir, name)
	}
	return found, nil
}
