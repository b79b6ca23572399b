package blobs

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"path"

	"anneal/domain"
)

// Handler serves the URLs that SignGet and SignPut make, below the path of
// BaseURL. A bucket that signs by itself needs none; all is NotFound then.
//
// An error is {"code": canonical number, "message": …} with HTTP 400 (a bad
// name), 403 (forged or expired), 404, 405 (another method than was signed), 408
// (too slow), 413 (above the limit), 507 (the disk is full) or 500; with code 15
// the file is damaged. When that shows after the answer has begun, the connection
// is broken off, and whoever asks again gets the error.
func (s *Store) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.signer == nil {
			refuse(w, http.StatusNotFound, domain.Errorf(domain.NotFound, "files are served by the object store itself"))
			return
		}
		granted, err := s.signer.verify(r.URL, s.now())
		if err != nil {
			refuse(w, http.StatusForbidden, err)
			return
		}
		if r.Method != granted.method && (r.Method != http.MethodHead || granted.method != http.MethodGet) {
			w.Header().Set("Allow", granted.method)
			refuse(w, http.StatusMethodNotAllowed, domain.Errorf(domain.InvalidArgument, "this link is for %s: use that method", granted.method))
			return
		}
		if granted.method == http.MethodPut {
			s.receive(w, r, granted)
		} else {
			s.serve(w, r, granted.key)
		}
	})
}

func (s *Store) serve(w http.ResponseWriter, r *http.Request, key string) {
	content, err := s.Get(r.Context(), key)
	if err != nil {
		refuse(w, statusOf(err), err)
		return
	}
	defer content.Close()
	stored, _ := content.(*verified)
	if stored != nil && r.Header.Get("Range") == "" && stored.Size() > 0 {
		if err := stored.load(); err != nil { // while the status can still tell
			refuse(w, statusOf(err), err)
			return
		}
	}
	// Whatever a user stored, a browser neither shows nor runs it.
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(key)}))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, content.ModTime().UnixNano(), content.Size()))
	if stored != nil && len(stored.contents) == 1 {
		sum := stored.contents[0].sha256
		w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":") // RFC 9530
	}
	http.ServeContent(w, r, "", content.ModTime(), content)
	if stored != nil && stored.failed != nil {
		panic(http.ErrAbortHandler) // the answer has begun: only breaking it off says that it is not whole
	}
}

func (s *Store) receive(w http.ResponseWriter, r *http.Request, granted grant) {
	tooLarge := domain.Errorf(domain.InvalidArgument, "the file is larger than the %d bytes that this link is for", granted.limit)
	if granted.limit > 0 && r.ContentLength > granted.limit {
		refuse(w, http.StatusRequestEntityTooLarge, tooLarge)
		return
	}
	var body io.Reader = r.Body
	if granted.limit > 0 {
		body = http.MaxBytesReader(w, r.Body, granted.limit)
	}
	_, err := s.Put(r.Context(), granted.key, body)
	var over *http.MaxBytesError
	switch {
	case errors.As(err, &over):
		refuse(w, http.StatusRequestEntityTooLarge, tooLarge)
	case err != nil:
		refuse(w, statusOf(err), err)
	default:
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, "{}\n")
	}
}

func statusOf(err error) int {
	switch domain.CodeOf(err) {
	case domain.InvalidArgument:
		return http.StatusBadRequest
	case domain.NotFound:
		return http.StatusNotFound
	case domain.DeadlineExceeded: // of the body
		return http.StatusRequestTimeout
	case domain.ResourceExhausted:
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

// refuse answers an error. One that is not a fault may name paths of this
// machine, and stays here.
func refuse(w http.ResponseWriter, status int, err error) {
	var fault *domain.Error
	if !errors.As(err, &fault) {
		fault = domain.Errorf(domain.Internal, "the file could not be transferred: try again")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": int(fault.Code), "message": fault.Message})
}
