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

// form is a multipart body of fields and a file, which is read while it is sent.
type form struct {
	io.Reader
	contentType string
	size        int64 // total bytes; -1 is unknown
}

// newForm returns a form; file may be nil. path is the file's name.
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

// unread returns the number of bytes of a reader after its current offset; -1 if it is unknown.
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

// announce sets the length of the request, so that the server can reject a body that is too large
// before it is sent.
func (f *form) announce(req *http.Request) {
	req.ContentLength = f.size
	req.Header.Set("Expect", "100-continue")
}
