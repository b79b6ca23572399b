// Package console serves the web console: static files that use the public API only.
package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io"
	"io/fs"
	"maps"
	"mime"
	"net/http"
	"path"
	"slices"
	"strings"

	"anneal/api/request"
)

//go:embed static
var static embed.FS

// entries are the modules that pages load: the console, and the page at the end of a login. The
// server sends each with all modules that it imports.
var entries = []string{"main.js", "oidc.js"}

// policy is the Content-Security-Policy of the console. It permits only files of the console's own
// server, and requests to that server.
const policy = "default-src 'self'; img-src 'self' data:; media-src 'self' blob:; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'; object-src 'none'"

// index is the name of the file that is served at the path /.
const index = "index.html"

// A file is a file of the console with its media type and ETag, as it is sent to browsers.
type file struct {
	media, tag       string
	content, gzipped []byte
}

// files are the files of the console by path.
var files = mustRead(static)

// Operations returns the operations that serve the console.
func Operations() []request.Operation {
	all := []request.Operation{page("/", files[index])}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if name != index {
			all = append(all, page("/console/"+name, files[name]))
		}
	}
	return all
}

func page(at string, f file) request.Operation {
	return request.Operation{ID: "GET " + at, Method: "GET", Path: at, Gate: request.Everyone, Hidden: true,
		Handle: func(c *request.Call) (any, error) {
			f.send(c.Writer, c.Request)
			return nil, nil
		}}
}

// send writes the file, compressed if the client accepts that, or 304 if the client has it.
func (f file) send(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.media)
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache") // the browser must validate its copy with the ETag
	h.Set("ETag", f.tag)
	h.Add("Vary", "Accept-Encoding")
	if r.Header.Get("If-None-Match") == f.tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	content := f.content
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		h.Set("Content-Encoding", "gzip")
		content = f.gzipped
	}
	_, _ = w.Write(content) // an error means that the client has disconnected
}

func mustRead(from fs.FS) map[string]file {
	all := map[string]file{}
	own := map[string][]byte{} // own modules by path
	err := fs.WalkDir(from, "static", func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(from, at)
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(at, "static/")
		switch vendored := strings.HasPrefix(name, "vendor/"); {
		case vendored:
			all[name] = fileOf(name, content)
		case path.Ext(name) == ".js":
			own[name] = compact(content)
		default:
			all[name] = fileOf(name, compact(content))
		}
		return nil
	})
	if err != nil {
		panic(err) // impossible: the files are part of the program
	}
	for _, entry := range entries {
		all[entry] = fileOf(entry, joined(entry, own))
	}
	return all
}

func fileOf(name string, content []byte) file {
	sum := sha256.Sum256(content)
	return file{media: mediaOf(name), tag: `"` + hex.EncodeToString(sum[:8]) + `"`, content: content,
		gzipped: compressed(content)}
}

// compact returns a text without indentation, empty lines, and comments that begin with // at the
// beginning of a line or after a space. This saves an eighth of the compressed size. TestFiles
// checks that no file contains a text that looks like such a comment.
func compact(content []byte) []byte {
	var out bytes.Buffer
	for line := range bytes.Lines(content) {
		line, _, _ = bytes.Cut(line, []byte(" // "))
		if line = bytes.TrimSpace(line); len(line) > 0 && !bytes.HasPrefix(line, []byte("//")) {
			out.Write(line)
			out.WriteByte('\n')
		}
	}
	return out.Bytes()
}

// mediaOf returns the media type of a file. Unlike mime.TypeByExtension, it does not depend on the
// tables of the operating system.
func mediaOf(name string) string {
	switch path.Ext(name) {
	case ".js":
		return "text/javascript; charset=utf-8"
	case ".css":
		return "text/css; charset=utf-8"
	case ".html":
		return "text/html; charset=utf-8"
	case ".svg":
		return "image/svg+xml"
	}
	return mime.FormatMediaType("text/plain", map[string]string{"charset": "utf-8"})
}

func compressed(content []byte) []byte {
	var out bytes.Buffer
	w, _ := gzip.NewWriterLevel(&out, gzip.BestCompression) // an error would mean that the level is invalid
	_, _ = io.Copy(w, bytes.NewReader(content))
	_ = w.Close() // writing to a buffer returns no error
	return out.Bytes()
}
