package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

func inputImage(url, detail string) string {
	return fmt.Sprintf(`{"type": "input_image", "image_url": %q, "detail": %q}`, url, detail)
}

// createImageResponse sends an input as a request for a response to the deployment seer, whose model accepts
// images.
func (s *harness) createImageResponse(input string) response {
	s.Helper()
	return s.call("POST", "/v1/responses", "user", `{"model": "accounts/acme/deployments/seer", `+
		`"instructions": "be brief", "input": `+input+`}`)
}

func showing(parts string) string { return `[{"role": "user", "content": [` + parts + `]}]` }

// TestImagesOfResponses checks images in the input of a response, from data: URLs and from a web server,
// and that nothing of them is left when the response has ended.
func TestImagesOfResponses(t *testing.T) {
	all := pictures(3, 2)
	web, base := startSeer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(all[strings.TrimPrefix(r.URL.Path, "/")])
	}))
	s := base.another(func(o *Options) { o.Private = true })
	for kind, data := range all {
		for _, url := range []string{dataURL(kind, data), web.URL + "/" + kind} {
			a := s.createImageResponse(showing(`{"type": "input_text", "text": "what is"}, ` + inputImage(url, "auto")))
			require.Equal(t, 200, a.status, "%s: %s", kind, a.body)
			require.Empty(t, a.header.Values(request.WarningHeader))
			require.Contains(t, string(a.body), "messages[1].content[1] "+kind+" true;")
			require.EqualValues(t, 583, a.json(t)["usage"].(map[string]any)["input_tokens"], "as the engine counts")
		}
	}
	messages := s.lastRequest().Chat.Messages
	require.Equal(t, engines.Message{Role: "system", Content: "be brief"}, messages[0])
	require.Equal(t, "what is", messages[1].Parts[0].Text)
	require.Empty(t, messages[1].Content)
	for key, err := range s.store.List(t.Context(), "transient/") {
		require.NoError(t, err)
		t.Errorf("%v is left", key)
	}
}

// TestInvalidImagesOfResponses checks the errors of images, each of which names the part of the input.
func TestInvalidImagesOfResponses(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deploySeer()
	s.see()
	s.deploy("d1", 1)
	auto := inputImage(pixel, "auto")
	for input, want := range map[string]string{
		showing(inputImage("ftp://example.com/a.png", "auto")):    "input[0].content[0].image_url: must be an http or https",
		showing(inputImage("http://127.0.0.1:1/a.png", "auto")):   "refers to a private address",
		showing(`{"type": "input_image"}`):                        "input[0].content[0].image_url: must be an http or https",
		showing(`{"type": "input_image", "image_url": {"a": 1}}`): "input[0].content[0].image_url: must be text",
		showing(`{"type": "input_image", "file_id": "f"}`):        "input[0].content[0].file_id: is not supported: send",
		showing(inputImage(pixel, "exact")):                       "input[0].content[0].detail: must be one of auto",
		showing(strings.Repeat(auto+",", 30) + auto):              "input: must have at most 30 images, not 31",
		`[{"role": "system", "content": [` + auto + `]}]`:         "input[0].content[0]: is an image, which only messages",
		`[{"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}, {"type": "function_call_output", ` +
			`"call_id": "a", "output": [` + auto + `]}]`: "input[1].output[0]: is an image, which only messages",
	} {
		a := s.createImageResponse(input)
		require.Equal(t, 400, a.status, "%.200s: %s", input, a.body)
		require.Contains(t, a.json(t)["error"].(map[string]any)["message"], want)
	}
	a := s.createResponse(`"input": ` + showing(auto))
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "input[0].content[0].image_url: is an image, which "+
		"accounts/default/models/anneal-base cannot read")

	// an engine without vision names the message, whose index is not that of the item
	s.replicas.respond = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
		_ func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, engines.ImagesError(&req, "is an image, which the engine cannot read")
	}
	a = s.createImageResponse(showing(`{"type": "input_text", "text": "a"}, ` + auto))
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "input[0].content[1].image_url: is an image, which the engine cannot read")
}
