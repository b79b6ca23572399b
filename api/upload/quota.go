package upload

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"anneal/api/connection"
	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
)

// formOverhead is the maximum size, in bytes, that a multipart form adds to a file.
const formOverhead = 4 << 10

// A ledger counts the bytes of uploads in progress on this server, until an event records them.
type ledger struct {
	mu      sync.Mutex
	pending map[string]int64 // bytes by account; only accounts with the quota storage-bytes
}

// A Store stores the files of uploads, and counts uploads in progress against storage quotas.
type Store struct {
	Blobs  *blobs.Store
	World  *projections.World
	ledger *ledger
}

// NewStore returns a Store that stores files in b, and reads quotas from the world.
func NewStore(b *blobs.Store, world *projections.World) *Store {
	return &Store{b, world, &ledger{pending: map[string]int64{}}}
}

// Pending returns the bytes of uploads that count against quotas, but that no event has recorded
// yet.
func (s *Store) Pending() (sum int64) {
	s.ledger.mu.Lock()
	defer s.ledger.mu.Unlock()
	for _, n := range s.ledger.pending {
		sum += n
	}
	return sum
}

// A reservation counts the bytes of one upload against the storage quota of its account. A nil
// reservation counts nothing.
type reservation struct {
	store   *Store
	account string
	// returns the bytes of files that the account stores but no event has recorded; nil if there
	// are none
	unrecorded func() (int64, error)
	replaced   int64 // bytes of the earlier files that the upload replaces

	unlimited   bool
	limit       int64
	used        int64 // bytes that the account uses, except uploads in progress
	refreshedAt int64 // value of taken, in bytes, at the last call of refresh
	known       bool
	taken       int64
	ahead       int64 // bytes in taken that were announced but have not arrived yet
}

// refreshInterval is the number of bytes after which a reservation reads the account's usage again.
const refreshInterval = 1 << 20

// refresh reads the account's quota and usage from the present world.
func (s *reservation) refresh() error {
	v := s.store.World.View()
	s.known, s.refreshedAt = true, s.taken
	var set bool
	if s.limit, set = v.Quota(s.account, domain.QuotaStorageBytes); !set {
		s.unlimited = true
		return nil
	}
	s.used = v.Storage(s.account) - s.replaced
	if s.unrecorded == nil {
		return nil
	}
	more, err := s.unrecorded()
	s.used += more
	return err
}

// take counts n more bytes. If they exceed the quota, it counts nothing and returns the error of
// request.OverQuota.
func (s *reservation) take(n int64) error {
	if s == nil || s.unlimited || n <= 0 {
		return nil
	}
	if !s.known || s.taken-s.refreshedAt >= refreshInterval {
		if err := s.refresh(); err != nil || s.unlimited {
			return err
		}
	}
	l := s.store.ledger
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

// release stops counting the bytes of the upload, because an event has recorded them or they are
// not stored.
func (s *reservation) release() {
	if s == nil || s.taken == 0 {
		return
	}
	l := s.store.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pending[s.account] -= s.taken; l.pending[s.account] == 0 {
		delete(l.pending, s.account)
	}
	s.taken, s.ahead = 0, 0
}

// takeAhead counts n bytes that the client has announced but not sent yet.
func (s *reservation) takeAhead(n int64) error {
	err := s.take(n)
	if err == nil && s != nil {
		s.ahead = max(n, 0)
	}
	return err
}

// arrive counts n bytes that were received, except those that takeAhead has counted.
func (s *reservation) arrive(n int64) error {
	if s == nil {
		return nil
	}
	announced := min(n, s.ahead)
	s.ahead -= announced
	return s.take(n - announced)
}

// fits returns an error if n more bytes would exceed the quota. It counts nothing.
func (s *reservation) fits(n int64) error {
	err := s.take(n)
	s.release()
	return err
}

// Counting makes the intake's files count against the storage quota, and returns the intake. The
// size of the files in replaced, which the upload replaces, is subtracted. The caller must call
// Release.
func (in *Intake) Counting(replaced domain.Files) *Intake {
	in.share = &reservation{store: in.store, account: in.Account, replaced: replaced.Bytes()}
	return in
}

// Release stops counting the intake's files as an upload in progress.
func (in *Intake) Release() { in.share.release() }

// Announced counts the announced length of a form (Content-Length) against the quota, before the
// form is read.
func (in *Intake) Announced() error {
	return in.share.takeAhead(in.Request.ContentLength - formOverhead)
}

// Reserve returns an error if n more bytes would exceed the account's storage quota. It only checks
// the quota, and counts nothing.
func (s *Store) Reserve(c *request.Call, n int64) error {
	return (&reservation{store: s, account: c.Account,
		unrecorded: func() (int64, error) { return s.arrivals(c.Ctx, c.Account) }}).fits(n)
}

// arrivals returns the size of the files that the account has sent to signed URLs and not validated
// yet.
func (s *Store) arrivals(ctx context.Context, account string) (sum int64, err error) {
	for f, err := range s.Blobs.List(ctx, blobs.StagingRoot+account+"/") {
		if err != nil {
			return 0, err
		}
		sum += f.Size
	}
	return sum, nil
}

// Handler serves signed URLs. The bytes of a PUT count against the storage quota of the account as
// they arrive.
func (s *Store) Handler() http.Handler {
	served := s.Blobs.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut && r.Body != nil {
			account := accountOfFile(r)
			reservation := &reservation{store: s, account: account,
				unrecorded: func() (int64, error) { return s.arrivals(r.Context(), account) }}
			defer reservation.release()
			if !strings.HasPrefix(r.URL.Path, "/blobs/"+blobs.StagingRoot) {
				reservation = nil // files that worker nodes send do not count against quotas
			}
			r.Body = &countedBody{r.Body, reservation, r.ContentLength, func() { connection.Keep(r.Context(), account) }}
		}
		served.ServeHTTP(&knownWriter{w, r}, r)
	})
}

// A knownWriter is the writer of the response to a signed URL. If the URL is valid, an account has
// created it, so the connection is protected from replacement: see connection.Keep.
type knownWriter struct {
	http.ResponseWriter
	request *http.Request
}

// WriteHeader implements http.ResponseWriter.
func (w *knownWriter) WriteHeader(status int) {
	if status < http.StatusBadRequest {
		connection.Keep(w.request.Context(), accountOfFile(w.request))
	}
	w.ResponseWriter.WriteHeader(status)
}

// Unwrap lets http.ResponseController reach the connection.
func (w *knownWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// accountOfFile returns the account in the path of a signed URL, /blobs/ROOT/ACCOUNT/….
func accountOfFile(r *http.Request) string {
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/blobs/"), "/", 3)
	if len(parts) < 3 {
		return ""
	}
	return parts[1]
}

// A countedBody counts the bytes of a body against a reservation as they are read. The body of a
// PUT is read only after the signature of its URL was verified.
type countedBody struct {
	io.ReadCloser
	share     *reservation
	announced int64  // bytes that the first Read counts before they arrive
	begins    func() // called by the first Read, before it reads; may be nil
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
