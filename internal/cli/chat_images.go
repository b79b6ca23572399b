package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"

	"anneal/api/request"
)

// imageTypes are the media types of image files that a message can contain.
var imageTypes = []string{"image/png", "image/jpeg", "image/webp", "image/gif"}

// maxImageFiles is the maximum total size of the image files of a request, in bytes. They are
// encoded as Base64 in the request's body, in which 256 KiB remain for the texts of the
// conversation.
var maxImageFiles = (request.DefaultLimits.Body - 256<<10) / 4 * 3

// readImages returns a part of a message for each source. A source is a file, whose content becomes
// part of the request, or a URL, from which the server downloads the image.
func readImages(sources []string) (parts []any, err error) {
	var total int64
	for _, source := range sources {
		link := source
		if !isURL(source) {
			if link, err = readImage(source, &total); err != nil {
				return nil, fmt.Errorf("--image: %w", err)
			}
		}
		parts = append(parts, map[string]any{"type": "image_url", "image_url": map[string]any{"url": link}})
	}
	return parts, nil
}

func isURL(source string) bool {
	parsed, err := url.Parse(source)
	return err == nil && (parsed.Scheme == "data" || parsed.Scheme == "http" || parsed.Scheme == "https")
}

// readImage returns the image in a file as a data: URL, and adds the size of the file to total.
func readImage(path string, total *int64) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxImageFiles-*total+1))
	if err != nil {
		return "", err
	}
	if len(content) == 0 {
		return "", fmt.Errorf("%s is empty: give a PNG, JPEG, WebP or GIF image", path)
	}
	kind := http.DetectContentType(content)
	if !slices.Contains(imageTypes, kind) {
		return "", fmt.Errorf("%s is not a PNG, JPEG, WebP or GIF image: convert it", path)
	}
	if *total += int64(len(content)); *total > maxImageFiles {
		return "", fmt.Errorf("image %s is too large: all images of a request together may have at most %s; scale it "+
			"down, or give an http or https URL", path, request.ByteSize(maxImageFiles))
	}
	return "data:" + kind + ";base64," + base64.StdEncoding.EncodeToString(content), nil
}
