// Package hubtest provides a server with the HTTP API of the Hugging Face Hub, for tests.
package hubtest

import (
	"crypto/sha1" //nolint:gosec // the hub identifies small files by git's SHA-1
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Commit is the commit of every model that a Server serves.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// A Server serves the files in Dir as models: Dir/ORG/NAME/FILE. Like the hub, it redirects
// requests for files with weights to another host, which must not receive the access token. It must
// listen on 127.0.0.1.
type Server struct {
	TB    testing.TB
	Dir   string
	Token string // access token that requests must have; "" accepts all requests
	// number of bytes after which the server cuts off the first response with a file; 0 cuts off no
	// response
	Cut int64

	mu       sync.Mutex
	cut      map[string]bool
	Requests []string // method, path and range of each request for the content of a file, in order
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, content := strings.CutPrefix(r.URL.Path, "/content/")
	switch {
	case content: // the host to which requests for weights are redirected
		require.Empty(s.TB, r.Header.Get("Authorization"), "the token is sent to another host")
		s.content(w, r, name)
	case s.Token != "" && r.Header.Get("Authorization") == "":
		http.Error(w, `{"error": "Access to this model is restricted"}`, http.StatusUnauthorized)
	case s.Token != "" && r.Header.Get("Authorization") != "Bearer "+s.Token:
		http.Error(w, `{"error": "You are not in the authorized list"}`, http.StatusForbidden)
	default:
		s.hub(w, r)
	}
}

func (s *Server) hub(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Path
	if rest, ok := strings.CutPrefix(path, "/api/models/"); ok {
		repo, revision, _ := strings.Cut(rest, "/revision/")
		if revision != "main" && revision != Commit || !s.list(w, repo) {
			http.Error(w, `{"error": "Repository not found"}`, http.StatusNotFound)
		}
		return
	}
	name := strings.Replace(strings.TrimPrefix(path, "/"), "/resolve/"+Commit+"/", "/", 1)
	if strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".gguf") {
		http.Redirect(w, r, "http://"+strings.Replace(r.Host, "127.0.0.1", "localhost", 1)+"/content/"+name, http.StatusFound)
		return
	}
	s.content(w, r, name)
}

// list writes the list of the files of a model. It returns false if the model does not exist.
func (s *Server) list(w http.ResponseWriter, repo string) bool {
	type lfs struct {
		SHA256 string `json:"sha256"`
	}
	type sibling struct {
		Name   string `json:"rfilename"`
		Size   int    `json:"size"`
		BlobID string `json:"blobId"`
		LFS    *lfs   `json:"lfs,omitempty"`
	}
	var siblings []sibling
	dir := filepath.Join(s.Dir, filepath.FromSlash(repo))
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		require.NoError(s.TB, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(s.TB, err)
		blob := sha1.Sum(fmt.Appendf(nil, "blob %d\x00%s", len(data), data)) //nolint:gosec // as git does
		one := sibling{Name: filepath.ToSlash(name), Size: len(data), BlobID: hex.EncodeToString(blob[:])}
		if strings.HasSuffix(name, ".safetensors") || strings.HasSuffix(name, ".gguf") {
			sum := sha256.Sum256(data)
			one.LFS = &lfs{hex.EncodeToString(sum[:])}
		}
		siblings = append(siblings, one)
		return nil
	})
	if err != nil {
		return false
	}
	w.Header().Set("Content-Type", "application/json")
	require.NoError(s.TB, json.NewEncoder(w).Encode(map[string]any{"id": repo, "sha": Commit, "siblings": siblings}))
	return true
}

func (s *Server) content(w http.ResponseWriter, r *http.Request, name string) {
	s.mu.Lock()
	s.Requests = append(s.Requests, strings.TrimSpace(r.Method+" "+name+" "+r.Header.Get("Range")))
	cut := s.Cut > 0 && !s.cut[name]
	if cut {
		if s.cut == nil {
			s.cut = map[string]bool{}
		}
		s.cut[name] = true
	}
	s.mu.Unlock()
	if cut {
		w = &cutWriter{w, s.Cut}
	}
	http.ServeFile(w, r, filepath.Join(s.Dir, filepath.FromSlash(name)))
}

// A cutWriter is a ResponseWriter that ends the connection after a number of bytes.
type cutWriter struct {
	http.ResponseWriter
	left int64
}

// Write implements http.ResponseWriter.
func (w *cutWriter) Write(p []byte) (int, error) {
	if int64(len(p)) <= w.left {
		w.left -= int64(len(p))
		return w.ResponseWriter.Write(p)
	}
	_, _ = w.ResponseWriter.Write(p[:w.left])
	_ = http.NewResponseController(w.ResponseWriter).Flush()
	panic(http.ErrAbortHandler)
}
