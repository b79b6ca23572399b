// Package s3test provides a small S3-compatible object store for tests. It stores objects in memory
// and verifies the signature of every request.
package s3test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// A Server is an object store for tests, with one bucket and one access key.
type Server struct {
	URL                    string
	Bucket                 string
	AccessKeyID, SecretKey string
	Public                 bool // anonymous requests may read objects
	IgnoresConditions      bool // a PUT with If-None-Match replaces an existing object
	RefusesConditions      bool // a PUT with If-None-Match gets status 501
	Discards               bool // objects that are written are empty
	mu                     sync.Mutex
	objects                map[string]string
	requests               int
}

// Start starts a server that runs until the test ends.
func Start(t testing.TB) *Server {
	s := &Server{Bucket: "rows", AccessKeyID: "AKTEST", SecretKey: "secret-of-the-test", objects: map[string]string{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL
	return s
}

// Address returns the address of a key for externalUrl.
func (s *Server) Address(key string) string {
	return "s3://" + s.Bucket + "/" + key + "?endpoint=" + url.QueryEscape(s.URL)
}

// Credentials returns the value of a secret with the server's credentials.
func (s *Server) Credentials() string {
	return fmt.Sprintf(`{"access_key_id": %q, "secret_access_key": %q}`, s.AccessKeyID, s.SecretKey)
}

// Put stores an object.
func (s *Server) Put(key, content string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.objects[key] = content
}

// Objects returns the stored objects by key.
func (s *Server) Objects() map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.objects)
}

// Requests returns the number of requests so far.
func (s *Server) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// ServeHTTP implements http.Handler: GET, HEAD and PUT of objects, and ListObjectsV2.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	if reason := s.refuse(r, body); reason != "" {
		fail(w, http.StatusForbidden, reason)
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	content, exists := s.objects[key]
	switch {
	case bucket != s.Bucket:
		fail(w, http.StatusNotFound, "NoSuchBucket")
	case r.Method == http.MethodGet && key == "" && r.URL.Query().Get("list-type") == "2":
		s.list(w, r.URL.Query())
	case r.Method == http.MethodPut && s.RefusesConditions && r.Header.Get("If-None-Match") != "":
		fail(w, http.StatusNotImplemented, "NotImplemented")
	case r.Method == http.MethodPut && exists && !s.IgnoresConditions && r.Header.Get("If-None-Match") == "*":
		fail(w, http.StatusPreconditionFailed, "PreconditionFailed")
	case r.Method == http.MethodPut:
		if s.Discards {
			body = nil
		}
		s.objects[key] = string(body)
	case !exists:
		fail(w, http.StatusNotFound, "NoSuchKey")
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		w.Header().Set("Last-Modified", "Mon, 02 Mar 2026 08:30:00 GMT")
		if r.Method == http.MethodGet {
			_, _ = io.WriteString(w, content)
		}
	default:
		fail(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

func fail(w http.ResponseWriter, status int, code string) {
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code></Error>", code)
}

func (s *Server) list(w http.ResponseWriter, query url.Values) {
	type entry struct {
		Key          string
		Size         int
		LastModified string
		ETag         string
	}
	type prefix struct{ Prefix string }
	page := struct {
		XMLName        xml.Name `xml:"ListBucketResult"`
		Name           string
		Contents       []entry
		CommonPrefixes []prefix
	}{Name: s.Bucket}
	for _, key := range slices.Sorted(maps.Keys(s.objects)) {
		rest, ok := strings.CutPrefix(key, query.Get("prefix"))
		directory, _, nested := strings.Cut(rest, "/")
		switch {
		case !ok:
		case !nested:
			page.Contents = append(page.Contents, entry{key, len(s.objects[key]), "2026-03-02T08:30:00Z", `"e"`})
		case !slices.Contains(page.CommonPrefixes, prefix{query.Get("prefix") + directory + "/"}):
			page.CommonPrefixes = append(page.CommonPrefixes, prefix{query.Get("prefix") + directory + "/"})
		}
	}
	_ = xml.NewEncoder(w).Encode(page)
}

// refuse returns the S3 error code for a request that the access key has not signed; "" for a valid
// request.
func (s *Server) refuse(r *http.Request, body []byte) string {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		if s.Public && r.Method != http.MethodPut {
			return ""
		}
		return "AccessDenied"
	}
	parts := map[string]string{}
	for _, part := range strings.Split(given, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		parts[name] = value
	}
	key, scope, _ := strings.Cut(parts["Credential"], "/")
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if sum := sha256.Sum256(body); hash != hex.EncodeToString(sum[:]) {
		return "XAmzContentSHA256Mismatch"
	}
	if key != s.AccessKeyID {
		return "InvalidAccessKeyId"
	}
	canonical := r.Method + "\n" + r.URL.EscapedPath() + "\n"
	canonical += strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20") + "\n"
	for _, name := range strings.Split(parts["SignedHeaders"], ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = fmt.Sprint(r.ContentLength)
		}
		canonical += name + ":" + strings.TrimSpace(value) + "\n"
	}
	canonical += "\n" + parts["SignedHeaders"] + "\n" + hash
	sum := sha256.Sum256([]byte(canonical))
	signed := "AWS4-HMAC-SHA256\n" + r.Header.Get("X-Amz-Date") + "\n" + scope + "\n" + hex.EncodeToString(sum[:])
	signature := []byte("AWS4" + s.SecretKey)
	for _, part := range append(strings.Split(scope, "/"), signed) {
		mac := hmac.New(sha256.New, signature)
		mac.Write([]byte(part))
		signature = mac.Sum(nil)
	}
	if hex.EncodeToString(signature) != parts["Signature"] {
		return "SignatureDoesNotMatch"
	}
	return ""
}
