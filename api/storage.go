package api

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
)

// formRoomOfFile is at most what a multipart form adds to the file in it.
const formRoomOfFile = 4 << 10 // bytes

// A storageLedger counts the bytes that uploads are about to add to their
// accounts, on this server, until an event records them.
type storageLedger struct {
	mu      sync.Mutex
	pending map[string]int64 // bytes, by account; only those with a quota are ever in it
}

func newStorageLedger() *storageLedger { return &storageLedger{pending: map[string]int64{}} }

// A storageShare is what one upload takes of its account's quota storage-bytes.
// A nil share counts nothing.
type storageShare struct {
	server   *Server
	account  string
	beside   func() (int64, error) // bytes that count besides those in the log; nil is none
	replaced int64                 // bytes of the account that the upload replaces

	unlimited bool
	limit     int64
	used      int64 // of the account, without what is pending
	looked    int64 // of taken, when used was found out
	known     bool
	taken     int64
	ahead     int64 // of taken, bytes that have not arrived yet
}

// lookAgain is after how many bytes of an upload the account's usage is looked
// up again.
const lookAgain = 1 << 20

// look finds out the account's quota and usage.
func (s *storageShare) look() error {
	v := s.server.World.View()
	s.known, s.looked = true, s.taken
	var set bool
	if s.limit, set = v.Quota(s.account, domain.QuotaStorageBytes); !set {
		s.unlimited = true
		return nil
	}
	s.used = v.Storage(s.account) - s.replaced
	if s.beside == nil {
		return nil
	}
	more, err := s.beside()
	s.used += more
	return err
}

// take counts n more bytes, or refuses them with the fault of overQuota.
func (s *storageShare) take(n int64) error {
	if s == nil || s.unlimited || n <= 0 {
		return nil
	}
	if !s.known || s.taken-s.looked >= lookAgain {
		if err := s.look(); err != nil || s.unlimited {
			return err
		}
	}
	l := s.server.storage
	l.mu.Lock()
	defer l.mu.Unlock()
	others := l.pending[s.account] - s.taken
	if s.used+others+s.taken+n > s.limit {
		return request.OverQuota(s.account, domain.QuotaStorageBytes, s.limit, s.used+others, s.taken+n)
	}
	s.taken += n
	l.pending[s.account] += n
	return nil
}

// release ends the count: the bytes are in the log by now, or are not stored.
func (s *storageShare) release() {
	if s == nil || s.taken == 0 {
		return
	}
	l := s.server.storage
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[s.account] -= s.taken; l.pending[s.account] == 0 {
		delete(l.pending, s.account)
	}
	s.taken, s.ahead = 0, 0
}

// takeAhead counts n bytes that are announced.
func (s *storageShare) takeAhead(n int64) error {
	err := s.take(n)
	if err == nil && s != nil {
		s.ahead = max(n, 0)
	}
	return err
}

// arrive counts n bytes that have arrived, unless they were announced.
func (s *storageShare) arrive(n int64) error {
	if s == nil {
		return nil
	}
	announced := min(n, s.ahead)
	s.ahead -= announced
	return s.take(n - announced)
}

// fits refuses n bytes that the share could not take.
func (s *storageShare) fits(n int64) error {
	err := s.take(n)
	s.release()
	return err
}

// counting makes the intake count against its account's quota, beyond the
// earlier files that it replaces. The caller releases its share.
func (in *intake) counting(replaced domain.Files) *intake {
	in.share = &storageShare{server: in.server, account: in.Account, replaced: replaced.Bytes()}
	return in
}

// announced counts a form whose length is known before any of it is read.
func (in *intake) announced() error {
	return in.share.takeAhead(in.Request.ContentLength - formRoomOfFile)
}

// room refuses to store bytes for the account when its quota is used up, or
// would be.
func (c *call) room(n int64) error {
	return (&storageShare{server: c.server, account: c.Account, beside: func() (int64, error) { return c.server.arrivals(c.Ctx, c.Account) }}).fits(n)
}

// arrivals is how many bytes were PUT to signed URLs of the account and are
// not validated, or validated a moment ago.
func (s *Server) arrivals(ctx context.Context, account string) (sum int64, err error) {
	for f, err := range s.Blobs.List(ctx, blobs.ArrivalRoot+account+"/") {
		if err != nil {
			return 0, err
		}
		sum += f.Size
	}
	return sum, nil
}

// files serves signed URLs. What is PUT for an upload counts against its
// account's quota from the first byte.
func (s *Server) files() http.Handler {
	served := s.Blobs.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.Body != nil {
			account := accountOfFile(r)
			share := &storageShare{server: s, account: account, beside: func() (int64, error) { return s.arrivals(r.Context(), account) }}
			defer share.release()
			if !strings.HasPrefix(r.URL.Path, "/blobs/"+blobs.ArrivalRoot) {
				share = nil // results of workers
			}
			r.Body = &countedBody{r.Body, share, r.ContentLength, func() { know(r.Context(), account) }}
		}
		served.ServeHTTP(&knownWriter{w, r}, r)
	})
}

// A knownWriter keeps the place of a connection on which a signed URL is
// answered: who has one has it from an account.
type knownWriter struct {
	http.ResponseWriter
	request *http.Request
}

// WriteHeader implements http.ResponseWriter.
func (w *knownWriter) WriteHeader(status int) {
	if status < http.StatusBadRequest {
		know(w.request.Context(), accountOfFile(w.request))
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *knownWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// accountOfFile is whose file a signed URL leads to: the path is
// /blobs/ROOT/ACCOUNT/….
func accountOfFile(r *http.Request) string {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/blobs/"), "/", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// A countedBody counts what is read. Of a PUT it is read only once its signature
// was found right.
type countedBody struct {
	io.ReadCloser
	share     *storageShare
	announced int64  // bytes that are counted before the first is read
	begins    func() // is called when it is read; nil is nothing
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	if b.begins != nil {
		b.begins()
		b.begins = nil
	}
	if b.announced > 0 {
		if err := b.share.takeAhead(b.announced); err != nil {
			return 0, err
		}
		b.announced = 0
	}
	n, err := b.ReadCloser.Read(p)
	if over := b.share.arrive(int64(n)); over != nil {
		return 0, over
	}
	return n, err
}
