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

// A form is a multipart body: fields, and behind them a file that is read as it
// is sent.
type form struct {
	io.Reader
	contentType string
	size        int64 // bytes of all of it; -1 is not known
}

// newForm makes a form; without a file it has fields alone. path is where the
// file comes from.
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
	f := &form{io.MultiReader(bytes.NewReader(around.Bytes()[:before]), file, bytes.NewReader(around.Bytes()[before:])), w.FormDataContentType(), -1}
	if left := unread(file); left >= 0 {
		f.size = int64(around.Len()) + left
	}
	return f, nil
}

// unread is how many bytes of a file are left to read; -1 is not known.
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

// announce tells the server how much comes, so that it can refuse too much
// before any of it is sent.
func (f *form) announce(req *http.Request) {
	req.ContentLength = f.size
	req.Header.Set("Expect", "100-continue")
}
