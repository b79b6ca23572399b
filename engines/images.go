package engines

import (
	"fmt"
	"iter"

	"anneal/domain"
)

// MaxImages is the maximum number of images in a request.
const MaxImages = 30

// ImagePlaceholder stands for an image in the text of CompletionRequest.Prompt.
const ImagePlaceholder = "<image>"

// An Image is a PNG, JPEG, WebP or GIF image of a prompt or message.
type Image struct {
	Type string `json:"type"` // media type, such as image/png
	URL  string `json:"url"`  // URL from which the node downloads the image
	Size int64  `json:"size"` // size of the image file in bytes
	Data []byte `json:"-"`    // content of the image file, which the node sets before it calls the engine
}

// A Part is a part of the content of a message: a text or an image.
type Part struct {
	Text  string `json:"text,omitempty"`
	Image *Image `json:"image,omitempty"` // image; if it is not nil, Text is not used
}

// An ImageReader is a Model that can complete requests with images.
type ImageReader interface {
	Model
	// CheckImages returns an error, usually ImagesError, if the model cannot read the images of the
	// request. It is called before their Data is set.
	CheckImages(req *CompletionRequest) error
}

// AllImages yields the images of a prompt or conversation in their order, each with its path in the
// request, such as images[0] or messages[2].content[1].
func (r *CompletionRequest) AllImages() iter.Seq2[string, *Image] {
	return func(yield func(string, *Image) bool) {
		for i, image := range r.Images {
			if !yield(fmt.Sprintf("images[%d]", i), image) {
				return
			}
		}
		if r.Chat == nil {
			return
		}
		for i, m := range r.Chat.Messages {
			for j, part := range m.Parts {
				if part.Image != nil && !yield(fmt.Sprintf("messages[%d].content[%d]", i, j), part.Image) {
					return
				}
			}
		}
	}
}

// HasImages reports whether the request has an image.
func (r *CompletionRequest) HasImages() bool {
	for range r.AllImages() {
		return true
	}
	return false
}

// ImagesError returns the error of a request whose images the model cannot read. why completes a
// sentence that begins with the path of the first image.
func ImagesError(req *CompletionRequest, why string) error {
	var v domain.Violations
	for at := range req.AllImages() {
		v.Add(at, "%s", why)
		break
	}
	return v.Err()
}
