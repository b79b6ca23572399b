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

// Handler serves the URLs of SignGet and SignPut, below the path of BaseURL. If the bucket signs
// its own URLs, all responses are 404.
//
// An error is {"code": canonical number, "message": …} with status 400 (invalid name), 403 (invalid
// or expired signature), 404, 405 (the method is not the signed one), 408 (the body arrives too
// slowly), 413 (the body exceeds the limit of the URL), 507 (disk full) or 500. Code 15 (DataLoss)
// means that the file is damaged. When damage is found after the response has begun, the connection
// is aborted, and the next request for the file gets the error.
func (s *Store) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.signer == nil {
			refuse(w, http.StatusNotFound,
				domain.Errorf(domain.NotFound,
					"files are served by the object store, not by this server: use the signed URL unchanged"))
			return
		}
		granted, err := s.signer.verify(r.URL, s.now())
		if err != nil {
			refuse(w, http.StatusForbidden, err)
			return
		}
		if r.Method != granted.method && (r.Method != http.MethodHead || granted.method != http.MethodGet) {
			w.Header().Set("Allow", granted.method)
			refuse(w, http.StatusMethodNotAllowed, domain.Errorf(domain.InvalidArgument,
				"this URL is signed for the method %s: use that method",
				granted.method))
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
		if err := stored.load(); err != nil { // verify the first block before the status is sent
			refuse(w, statusOf(err), err)
			return
		}
	}
	// A browser must neither show nor run a file that a user has stored.
	w.Header().Set("Content-Type", contentType)
	w.Header().Set("Content-Disposition",
		mime.FormatMediaType("attachment", map[string]string{"filename": path.Base(key)}))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, content.ModTime().UnixNano(), content.Size()))
	if stored != nil && len(stored.contents) == 1 {
		sum := stored.contents[0].sha256
		w.Header().Set("Repr-Digest", "sha-256=:"+base64.StdEncoding.EncodeToString(sum[:])+":") // digest header of RFC 9530
	}
	http.ServeContent(w, r, "", content.ModTime(), content)
	if stored != nil && stored.failed != nil {
		panic(http.ErrAbortHandler) // the response has begun, so only aborting shows the client that it is incomplete
	}
}

func (s *Store) receive(w http.ResponseWriter, r *http.Request, granted grant) {
	tooLarge := domain.Errorf(domain.InvalidArgument, "the file is larger than the %d bytes that this URL allows: "+
		"upload a smaller file", granted.limit)
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
	case domain.DeadlineExceeded: // the request body did not arrive in time
		return http.StatusRequestTimeout
	case domain.ResourceExhausted:
		return http.StatusInsufficientStorage
	}
	return http.StatusInternalServerError
}

// refuse responds with an error. The text of an error that is not a domain.Error is not sent,
// because it may contain paths of this machine.
func refuse(w http.ResponseWriter, status int, err error) {
	var e *domain.Error
	if !errors.As(err, &e) {
		e = domain.Errorf(domain.Internal, "the file could not be transferred: try again")
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": int(e.Code), "message": e.Message})
}
