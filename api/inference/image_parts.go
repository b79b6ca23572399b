package inference

import (
	"encoding/base64"
	"fmt"
	"slices"
	"strings"

	"anneal/api/download"
	"anneal/api/wire"
	"anneal/engines"
)

// imageTypes lists the media types of images that requests may contain.
var imageTypes = []string{"image/png", "image/jpeg", "image/webp", "image/gif"}

// imageRule states what the URL of an image must be, for violations.
const imageRule = "must be an http or https URL, or a data: URL of Base64 such as data:image/png;base64,iVBORw0…, " +
	"of a PNG, JPEG, WebP or GIF image"

// A requestImage is an image of a request. Its content is data or, if data is nil, the file at the
// URL link.
type requestImage struct {
	at    string // path of the image's field in the request
	link  string
	data  []byte
	image *engines.Image // image in the request to the engine; storeImages sets its URL, type and size
}

// readImages reads the field images of a completion request.
func readImages(f *fieldReader, q *generationRequest) {
	list := f.list("images", engines.MaxImages)
	for i, one := range list {
		at := fmt.Sprintf("images[%d]", i)
		text, ok := one.(string)
		if f.require(ok, at, "must be text, not %s", wire.KindName(one)); !ok {
			continue
		}
		if image := readImage(f, at, text); image != nil {
			q.settings.Images = append(q.settings.Images, image)
		}
	}
	if len(list) == 0 {
		return
	}
	f.require(len(q.prompts) == 1 && q.prompts[0].tokens == nil, "images",
		"require a single prompt that is a text: send one request for each prompt")
	if len(q.prompts) == 1 && q.prompts[0].tokens == nil {
		n := strings.Count(q.prompts[0].text, engines.ImagePlaceholder)
		f.require(n == len(list), "images", "has %d images, but the prompt has %d placeholders %s: write one placeholder "+
			"where each "+
			"image belongs", len(list), n, engines.ImagePlaceholder)
	}
}

// readImage returns the image with the URL text, which the request has at path. It adds a violation
// and returns nil if text is not the URL of an image.
func readImage(f *fieldReader, path, text string) *engines.Image {
	one := &requestImage{at: f.at + path, image: &engines.Image{}}
	if rest, ok := strings.CutPrefix(text, "data:"); ok {
		kind, encoded, found := strings.Cut(rest, ";base64,")
		var err error
		one.data, err = base64.StdEncoding.DecodeString(encoded)
		kind, _, _ = strings.Cut(kind, ";")
		if f.require(found && err == nil && len(one.data) > 0, path, imageRule); !found || err != nil || len(one.data) == 0 {
			return nil
		}
		if !slices.Contains(imageTypes, strings.ToLower(kind)) {
			f.add(path, "has the media type %s: send one of %s", wire.Quote(kind), strings.Join(imageTypes, ", "))
			return nil
		}
	} else if one.link = text; !download.IsFetchable(text) {
		f.add(path, imageRule)
		return nil
	}
	*f.images = append(*f.images, one)
	return one.image
}

// readContent reads the content of a message: a text, or a list of text parts and, in messages with
// the role user, image parts.
func readContent(f *fieldReader, m *engines.Message) {
	list, isList := f.values["content"].([]any)
	if !isList {
		m.Content = f.text("content", 16<<20) // the limit is larger than any body
		return
	}
	var parts []engines.Part
	hasImage := false
	var all strings.Builder
	for i, one := range list {
		at := fmt.Sprintf("content[%d]", i)
		part, _ := one.(map[string]any)
		if part["type"] == "image_url" {
			hasImage = true
			parts = append(parts, engines.Part{Image: readImagePart(f, at, part["image_url"])})
			f.require(m.Role == "user", at,
				"is an image, which only messages with the role user may have: move the image to one")
			continue
		}
		text, isText := part["text"].(string)
		f.require(isText && part["type"] == "text", at, "must be {\"type\": \"text\", \"text\": …} or {\"type\": "+
			"\"image_url\", \"image_url\": {\"url\": …}}: audio and files are not supported")
		parts = append(parts, engines.Part{Text: text})
		all.WriteString(text)
	}
	if hasImage {
		m.Parts = parts
		return
	}
	m.Content = all.String()
}

// readImagePart returns the image in the field image_url: an object with url, or the URL itself.
func readImagePart(f *fieldReader, at string, value any) *engines.Image {
	if text, ok := value.(string); ok {
		return readImage(f, at+".image_url", text)
	}
	object, ok := value.(map[string]any)
	if f.require(ok, at+".image_url", "must be an object with url, not %s", wire.KindName(value)); !ok {
		return nil
	}
	in := f.nested(at+".image_url", object, set("url", "detail"))
	in.enum("detail", "auto", "low", "high")
	return readImage(in, "url", in.text("url", 16<<20))
}
