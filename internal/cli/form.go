package cli

import (
	"bytes"
	"cmp"
	"io"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// A form is a multipart body with fields and a file. The file is read while the body is sent.
type form struct {
	io.Reader
	contentType string
	size        int64 // size of the body in bytes; -1 if it is unknown
}

// newForm returns a form with fields, of which empty ones are left out, and with a file, unless
// file is nil. path is the path of the file, whose last part the form contains.
func newForm(fields map[string]string, path string, file io.Reader) (*form, error) {
	var around bytes.Buffer
	w := multipart.NewWriter(&around)
	for name, value := range fields {
		if value == "" {
			continue
		}
		if err := w.WriteField(name, value); err != nil {
			return nil, err
		}
	}
	if file == nil {
		err := w.Close()
		return &form{&around, w.FormDataContentType(), int64(around.Len())}, err
	}
	if _, err := w.CreateFormFile("file", cmp.Or(strings.Trim(filepath.Base(path), "-"), "file")); err != nil {
		return nil, err
	}
	before := around.Len()
	if err := w.Close(); err != nil {
		return nil, err
	}
	f := &form{io.MultiReader(bytes.NewReader(around.Bytes()[:before]), file, bytes.NewReader(around.Bytes()[before:])),
		w.FormDataContentType(), -1}
	if left := unread(file); left >= 0 {
		f.size = int64(around.Len()) + left
	}
	return f, nil
}

// unread returns the number of bytes that a reader has not returned yet; -1 if it is unknown.
func unread(r io.Reader) int64 {
	file, ok := r.(*os.File)
	if !ok {
		return -1
	}
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return -1
	}
	at, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return -1
	}
	return max(0, info.Size()-at)
}

// announce sets the length of a request with the form, and lets the client wait for the server's
// consent (Expect: 100-continue), so that the server can reject a body that is too large before it
// is sent.
func (f *form) announce(req *http.Request) {
	req.ContentLength = f.size
	req.Header.Set("Expect", "100-continue")
}
