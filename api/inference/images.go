package inference

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // decoder for image.DecodeConfig
	_ "image/jpeg"
	_ "image/png"
	"io"
	"net/http"
	"slices"
	"strconv"
	"sync/atomic"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
)

// Limits of the images of one request, in addition to engines.MaxImages.
const (
	MaxImageBytes  = 10 << 20 // maximum size of one image, in bytes
	MaxImagesBytes = 32 << 20 // maximum size of all images of a request, in bytes
	// maximum number of pixels of an image, because a small file can contain a huge image
	maxPixels = 64 << 20
)

// requireVision returns an error if the request has images, but the files of the target's model
// contain no image encoder.
func (c *call) requireVision(q *generationRequest, target routing.Target) error {
	if len(q.images) == 0 {
		return nil
	}
	row, ok := c.View().Models.Get(domain.Name(target.State.BaseModel))
	if ok && row.State.Kind == domain.PEFTAddon {
		row, ok = c.View().Models.Get(domain.Name(row.State.BaseModel))
	}
	if !ok || row.State.Vision {
		return nil
	}
	var v domain.Violations
	v.Add(q.images[0].at, "is an image, which %s cannot read: its config.json describes no image encoder, and it has no "+
		"mmproj file; send text only, or name a model that accepts images", row.Name)
	return v.Err()
}

// imagePath translates the path of an image in an engines.CompletionRequest, which an engine's
// error names, to the path of the image in the request. It does so only for requests to the
// Responses API, in which messages and input items have different indexes. It returns "" for other
// requests and other fields, whose paths need no translation.
func (q *generationRequest) imagePath(p prompt, field string) string {
	if q.response == nil {
		return ""
	}
	all := engines.CompletionRequest{Chat: p.chat}
	for at, image := range all.AllImages() {
		if at != field {
			continue
		}
		for _, one := range q.images {
			if one.image == image {
				return one.at
			}
		}
	}
	return ""
}

// storeImages stores the images of a request so that nodes can read them, and downloads those that
// are given by URL. The caller must call discard when the request has ended, even after an error.
func (c *call) storeImages(q *generationRequest) (discard func(), err error) {
	if len(q.images) == 0 {
		return func() {}, nil
	}
	prefix := blobs.TransientPrefix(c.Principal.Account, uuid.NewString())
	discard = func() {
		ctx, cancel := c.Detached()
		defer cancel()
		if err := c.Uploads.Blobs.DeletePrefix(ctx, prefix); err != nil {
			c.Logger.Warn("the images of a request were not deleted; the reconciler deletes them "+
				"later", "request", c.ID, "directory", prefix, "error", err)
		}
	}
	var total atomic.Int64
	return discard, forEach(c.Ctx, len(q.images), func(ctx context.Context, i int) error {
		return c.storeImage(ctx, prefix+strconv.Itoa(i), q.images[i], &total)
	})
}

// storeImage stores img under key, and adds its size to total.
func (c *call) storeImage(ctx context.Context, key string, img *requestImage, total *atomic.Int64) error {
	invalid := func(err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var v domain.Violations
		v.Add(img.at, "%s", err)
		return v.Err()
	}
	var content io.Reader = bytes.NewReader(img.data)
	failed := func() error { return nil }
	if img.data == nil {
		body, _, err := c.images.Get(ctx, img.link)
		if err != nil {
			return invalid(err)
		}
		defer body.Close()
		content, failed = body, body.Err
	}
	kind, content, err := checkImage(io.LimitReader(content, MaxImageBytes+1))
	if err != nil {
		return invalid(cmp.Or(failed(), err))
	}
	size, err := c.Uploads.Blobs.Put(ctx, key, content)
	switch {
	case err != nil && failed() != nil:
		return invalid(failed())
	case err != nil:
		return err
	case size > MaxImageBytes:
		return invalid(fmt.Errorf("is an image of more than %s, which is the limit: scale it down",
			request.ByteSize(MaxImageBytes)))
	case total.Add(size) > MaxImagesBytes:
		return invalid(fmt.Errorf("makes all images of the request together exceed the limit of %s: scale "+
			"the images down, or send fewer", request.ByteSize(MaxImagesBytes)))
	}
	img.data = nil
	img.image.Type, img.image.Size = kind, size
	img.image.URL, err = c.Uploads.Blobs.SignGet(ctx, key, c.Limits.SignedURL)
	return err
}

// checkImage checks the format and the number of pixels of an image. It returns the image's media
// type, and a reader of the whole content.
func checkImage(content io.Reader) (kind string, all io.Reader, err error) {
	const header = 512
	from := bufio.NewReaderSize(content, 4<<10)
	start, err := from.Peek(header)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", nil, err
	}
	kind = http.DetectContentType(start)
	if !slices.Contains(imageTypes, kind) {
		return "", nil, errors.New("is not a PNG, JPEG, WebP or GIF image: convert it")
	}
	var read bytes.Buffer
	width, height := webpSize(start)
	if kind != "image/webp" {
		config, _, err := image.DecodeConfig(io.TeeReader(from, &read))
		if err != nil {
			return "", nil, fmt.Errorf("is not a valid image of the type %s: %w", kind, err)
		}
		width, height = config.Width, config.Height
	}
	if width < 1 || height < 1 || width > maxPixels/height {
		return "", nil, fmt.Errorf("is an image of %d × %d pixels: send an image of 1 to %d pixels in "+
			"total", width, height, maxPixels)
	}
	return kind, io.MultiReader(&read, from), nil
}

// webpSize returns the width and the height in the header of a WebP image (RFC 9649); 0 and 0 if
// the header is invalid.
func webpSize(b []byte) (width, height int) {
	if len(b) < 30 {
		return 0, 0
	}
	low := func(at int) int { return int(binary.LittleEndian.Uint16(b[at:])) & 0x3fff }
	switch string(b[12:16]) {
	case "VP8 ":
		return low(26), low(28)
	case "VP8L":
		bits := binary.LittleEndian.Uint32(b[21:])
		return int(bits&0x3fff) + 1, int(bits>>14&0x3fff) + 1
	case "VP8X":
		three := func(at int) int { return int(b[at]) | int(b[at+1])<<8 | int(b[at+2])<<16 }
		return three(24) + 1, three(27) + 1
	}
	return 0, 0
}
