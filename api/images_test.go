package api

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inference"
	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

// pictures returns an image in the formats that requests may have, by media type. The WebP image is the
// smallest lossless one.
func pictures(width, height int) map[string][]byte {
	picture := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.Black})
	all := map[string][]byte{}
	for kind, encode := range map[string]func(b *bytes.Buffer) error{
		"image/png":  func(b *bytes.Buffer) error { return png.Encode(b, picture) },
		"image/jpeg": func(b *bytes.Buffer) error { return jpeg.Encode(b, picture, nil) },
		"image/gif":  func(b *bytes.Buffer) error { return gif.Encode(b, picture, nil) },
	} {
		var b bytes.Buffer
		if err := encode(&b); err != nil {
			panic(err) // a Buffer never fails
		}
		all[kind] = b.Bytes()
	}
	all["image/webp"] = []byte("RIFF\x1a\x00\x00\x00WEBPVP8L\x0d\x00\x00\x00\x2f\x00\x00\x00\x10\x07\x10\x11\x11" +
		"\x88\x88\xfe\x07\x00")
	return all
}

func dataURL(kind string, data []byte) string {
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(data)
}

var pixel = dataURL("image/png", pictures(1, 1)["image/png"])

func imagePart(url, detail string) string {
	return fmt.Sprintf(`{"type": "image_url", "image_url": {"url": %q, "detail": %q}}`, url, detail)
}

// deploySeer deploys a model that accepts images.
func (s *harness) deploySeer() {
	name := domain.Name("accounts/acme/models/seer")
	s.do(domain.Intend(domain.Models, name, domain.RegisterModel{
		ModelSpec:     domain.ModelSpec{DisplayName: "seer", Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{ModelType: "llava", ParameterCount: 840_000, ContextLength: 512, Vision: true},
		Files:         domain.Files{Prefix: "models/acme/seer/", Sizes: map[string]int64{"model.safetensors": 42}}}))
	s.deploy("seer", 1, func(spec *domain.DeploymentSpec) { spec.BaseModel = string(name) })
}

// startSeer starts a web server with a handler for its pages, and a server of the API with the
// deployment of deploySeer, whose replicas respond as see describes.
func startSeer(t *testing.T, pages http.Handler) (*httptest.Server, *harness) {
	t.Helper()
	web := httptest.NewServer(pages)
	t.Cleanup(web.Close)
	s := newHarness(t, request.Limits{})
	s.deploySeer()
	s.see()
	return web, s
}

// see makes every replica download the images of a request and respond with their types and sizes.
func (s *harness) see() {
	s.replicas.respond = func(ctx context.Context, _ domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		text := ""
		for at, one := range req.AllImages() {
			content, err := fetchText(ctx, one.URL)
			if err != nil {
				return engines.Usage{}, err
			}
			text += fmt.Sprintf("%s %s %v;", at, one.Type, int64(len(content)) == one.Size)
		}
		return engines.Usage{PromptTokens: 583, CompletionTokens: 1}, emit(engines.Chunk{Text: text, Finish: "stop"})
	}
}

func (s *harness) show(alias, parts string) response {
	return s.call("POST", "/inference/v1/chat/completions", alias,
		`{"model": "accounts/acme/deployments/seer", "messages": [{"role": "user", "content": [`+parts+`]}]}`)
}

// TestImagesReachReplicas checks images from data: URLs and from a web server, in messages and in
// prompts, and that nothing of them is left when the response has ended.
func TestImagesReachReplicas(t *testing.T) {
	all := pictures(3, 2)
	mux := http.NewServeMux()
	for kind, data := range all {
		mux.HandleFunc("/"+kind, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/plain") // the content decides
			_, _ = w.Write(data)
		})
	}
	web, base := startSeer(t, mux)
	s := base.another(func(o *Options) { o.Private = true })
	for kind, data := range all {
		for _, url := range []string{dataURL(kind, data), web.URL + "/" + kind} {
			a := s.show("user", `{"type": "text", "text": "what is"}, `+imagePart(url, "auto"))
			require.Equal(t, 200, a.status, "%s: %s", kind, a.body)
			require.Equal(t, "messages[0].content[1] "+kind+" true;",
				a.json(t)["choices"].([]any)[0].(map[string]any)["message"].(map[string]any)["content"])
			require.EqualValues(t, 583, a.json(t)["usage"].(map[string]any)["prompt_tokens"], "as the engine counts")
		}
	}
	parts := s.lastRequest().Chat.Messages[0].Parts
	require.Equal(t, "what is", parts[0].Text)
	require.Empty(t, s.lastRequest().Chat.Messages[0].Content)

	a := s.call("POST", "/inference/v1/completions", "user", `{"model": "accounts/acme/deployments/seer", "n": 2, `+
		`"prompt": "<image> and <image>", "images": ["`+pixel+`", "`+web.URL+`/image/gif"]}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	for _, choice := range a.json(t)["choices"].([]any) {
		require.Equal(t, "images[0] image/png true;images[1] image/gif true;", choice.(map[string]any)["text"])
	}
	require.Equal(t, 583.0, a.json(t)["usage"].(map[string]any)["prompt_tokens"], "a prompt counts once")

	for key, err := range s.store.List(t.Context(), "transient/") {
		require.NoError(t, err)
		t.Errorf("%v is left", key)
	}
}

// TestInvalidImages checks the errors of images, each of which names the field.
func TestInvalidImages(t *testing.T) {
	all := pictures(1, 1)
	large := bytes.Repeat(all["image/png"], inference.MaxImageBytes/len(all["image/png"])+1)
	huge := bytes.Clone(all["image/png"])
	copy(huge[16:24], "\x00\x01\x00\x00\x00\x01\x00\x00") // 65,536 × 65,536 pixels; the checksum of the header is wrong
	vast := bytes.Clone(all["image/gif"])
	copy(vast[6:10], "\xff\xff\xff\xff")
	mux := http.NewServeMux()
	mux.HandleFunc("/large", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(large) })
	mux.HandleFunc("/text", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("no image")) })
	mux.HandleFunc("/half", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		_, _ = w.Write(all["image/png"])
	})
	web, base := startSeer(t, mux)
	base.deploy("d1", 1)
	s := base.another(func(o *Options) { o.Private = true })
	auto := func(url string) string { return imagePart(url, "auto") }
	for part, want := range map[string]string{
		auto("ftp://example.com/a.png"):            "content[0].image_url.url: must be an http or https URL",
		auto("data:image/png;base64,!"):            "content[0].image_url.url: must be an http or https URL",
		auto("data:image/png,abc"):                 "content[0].image_url.url: must be an http or https URL",
		auto(dataURL("image/tiff", []byte("II*"))): `has the media type "image/tiff": send one of image/png`,
		auto(dataURL("image/png", []byte("text"))): "is not a PNG, JPEG, WebP or GIF image",
		auto(dataURL("image/png", huge)):           "is not a valid image of the type image/png",
		auto(dataURL("image/gif", vast)): "is an image of 65535 × 65535 pixels: send an image of 1 to " +
			"67108864 pixels",
		auto(web.URL + "/large"):                          "is an image of more than 10 MiB, which is the limit",
		auto(web.URL + "/text"):                           "is not a PNG, JPEG, WebP or GIF image",
		auto(web.URL + "/half"):                           "could not be downloaded completely",
		auto(web.URL + "/missing"):                        "returns HTTP status 404",
		imagePart(pixel, "exact"):                         "image_url.detail: must be one of auto, low, high",
		`{"type": "input_audio", "input_audio": {}}`:      "content[0]: must be ",
		strings.Repeat(auto(pixel)+",", 30) + auto(pixel): "messages: must have at most 30 images, not 31",
	} {
		a := s.show("user", part)
		require.Equal(t, 400, a.status, "%.200s: %s", part, a.body)
		require.Contains(t, a.json(t)["error"].(map[string]any)["message"], want)
		require.Contains(t, a.json(t)["error"].(map[string]any)["message"], "messages")
	}
	a := base.show("user", imagePart(web.URL+"/text", "auto"))
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "refers to a private address")

	for fields, want := range map[string]string{
		`"prompt": "a", "images": ["` + pixel + `"]`:                   "images: has 1 images, but the prompt has 0",
		`"prompt": ["<image>", "b"], "images": ["` + pixel + `"]`:      "images: require a single prompt that is a text",
		`"prompt": [1], "images": ["` + pixel + `"]`:                   "images: require a single prompt that is a text",
		`"prompt": "<image>", "images": [5]`:                           "images[0]: must be text",
		`"prompt": "<image>", "images": ["` + web.URL + `/text"]`:      "images[0]: is not a PNG",
		`"prompt": "<image><image>", "images": ["` + pixel + `", "x"]`: "images[1]: must be an http or https URL",
	} {
		a := s.call("POST", "/inference/v1/completions", "user", `{"model": "accounts/acme/deployments/seer", `+fields+`}`)
		require.Equal(t, 400, a.status, "%.200s", fields)
		require.Contains(t, a.json(t)["error"].(map[string]any)["message"], want)
	}

	a = s.call("POST", "/inference/v1/chat/completions", "user", `{`+toD1+`, "messages": [{"role": "user", `+
		`"content": [`+imagePart(web.URL+"/missing", "auto")+`]}]}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "is an image, which accounts/default/models/anneal-base cannot read")
	a = s.call("POST", "/inference/v1/chat/completions", "user", `{"model": "accounts/acme/deployments/seer", `+
		`"messages": [{"role": "system", "content": [`+imagePart(pixel, "auto")+`]}]}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "messages[0].content[0]: is an image, which only messages with the role user")

	// an engine without vision names the part
	base.replicas.respond = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
		_ func(engines.Chunk) error) (engines.Usage, error) {
		return engines.Usage{}, engines.ImagesError(&req, "is an image, which the engine cannot read")
	}
	a = s.show("user", `{"type": "text", "text": "a"}, `+imagePart(pixel, "auto"))
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "messages[0].content[1]: is an image, which the engine cannot read")
}
