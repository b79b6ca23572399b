package external

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"io"
	"net/http"
	"strings"

	"anneal/engines"
)

// fakeMarker is the media marker of the fake server of llama.cpp.
const fakeMarker = "<__media_7__>"

// fakeContent is the content of a message. Each image becomes the text [WIDTHxHEIGHT], so that tests
// can find it in the echo of the simulated engine, or [invalid image].
type fakeContent string

func (c *fakeContent) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*c = fakeContent(text)
		return nil
	}
	var parts []struct {
		Type, Text string
		ImageURL   struct{ URL string } `json:"image_url"`
	}
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	for _, part := range parts {
		switch part.Type {
		case "text":
			*c += fakeContent(part.Text)
		case "image_url":
			encoded, _ := strings.CutPrefix(part.ImageURL.URL, "data:image/png;base64,")
			*c += fakeContent(sizeOfPNG(encoded))
		default:
			return fmt.Errorf("unknown part %q", part.Type)
		}
	}
	return nil
}

func sizeOfPNG(encoded string) string {
	data, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return "[invalid image]"
	}
	config, err := png.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return "[invalid image]"
	}
	return fmt.Sprintf("[%dx%d]", config.Width, config.Height)
}

// testImage returns a PNG image.
func testImage(width, height int) *engines.Image {
	var data bytes.Buffer
	_ = png.Encode(&data, image.NewGray(image.Rect(0, 0, width, height))) // a Buffer never fails
	return &engines.Image{Type: "image/png", Data: data.Bytes(), Size: int64(data.Len())}
}

// rejectsImages returns why the server rejects the images of a request, as vLLM does for a model
// without an image encoder, and llama.cpp's server without a projector.
func (f *fakeServer) rejectsImages(in fakeRequest) string {
	for _, m := range in.Messages {
		switch {
		case !strings.Contains(string(m.Content), "["):
		case f.mode == "textOnly":
			return "model is not a multimodal model"
		case f.dialect == LlamaCpp && f.flags["--mmproj"] == "":
			return "image input is not supported - hint: if this is unexpected, you may need to provide the mmproj"
		}
	}
	return ""
}

// completeNative serves llama.cpp's operation /completion with the fields that prompts with images
// need.
func (f *fakeServer) completeNative(w http.ResponseWriter, r *http.Request) {
	var in struct {
		Prompt struct {
			Text   string   `json:"prompt_string"`
			Images []string `json:"multimodal_data"`
		}
		NPredict    int     `json:"n_predict"`
		Temperature float64 `json:"temperature"`
		Stop        []string
		Stream      bool
		Schema      json.RawMessage `json:"json_schema"`
	}
	data, _ := io.ReadAll(r.Body)
	if err := json.Unmarshal(data, &in); err != nil || !in.Stream || f.flags["--mmproj"] == "" {
		writeError(w, http.StatusBadRequest, "invalid request: "+string(data))
		return
	}
	for _, one := range in.Prompt.Images {
		in.Prompt.Text = strings.Replace(in.Prompt.Text, fakeMarker, sizeOfPNG(one), 1)
	}
	if strings.Contains(in.Prompt.Text, fakeMarker) || strings.Contains(in.Prompt.Text, "invalid") {
		writeError(w, http.StatusBadRequest, "number of bitmaps does not match number of markers")
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	event := func(b body) error {
		text, _ := json.Marshal(b)
		_, err := fmt.Fprintf(w, "data: %s\n\n", text)
		return err
	}
	stopType := "eos"
	usage, err := f.model.Complete(r.Context(), engines.CompletionRequest{Prompt: in.Prompt.Text, MaxTokens: in.NPredict,
		Temperature: in.Temperature, Stop: in.Stop}, func(c engines.Chunk) error {
		if c.Finish == engines.FinishLength {
			stopType = "limit"
		}
		return event(body{"index": 0, "content": c.Text, "stop": false})
	})
	if err != nil {
		_ = event(body{"error": body{"message": err.Error(), "code": 400}})
		return
	}
	_ = event(body{"index": 0, "content": "", "stop": true, "stop_type": stopType,
		"tokens_predicted": usage.CompletionTokens, "tokens_evaluated": usage.PromptTokens, "timings": body{"cache_n": 1}})
}
