package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// An exchange bounds how long one request holds its connection: its body must
// arrive, and its answer be taken, at a minimal rate. Requests whose body is
// still unread when they are answered end their connection.
type exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	request *http.Request
	limits  *Limits
	body    io.ReadCloser // nil when the request has none

	began    time.Time     // of reading the body
	waited   time.Duration // for it
	read     int64         // bytes of it
	whole    bool          // it was read to its end
	until    time.Time     // when reading it must have ended; the zero time sets no such end
	answered bool

	bodies   *bodyBudget
	account  string // of the caller, once it is known
	reserved int64  // bytes of memory
	decoding bool   // it has a place among bodies.decoders
}

type exchangeKey struct{}

// exchangeOf is the exchange that a request belongs to.
func exchangeOf(r *http.Request) *exchange {
	x, _ := r.Context().Value(exchangeKey{}).(*exchange)
	return x
}

// Bounds of what an exchange writes and leaves unread.
const (
	writePiece  = 64 << 10    // bytes that must be taken within Limits.AnswerTime
	lingerTime  = time.Second // for a body that nobody reads, before its connection is closed
	lingerBytes = 64 << 10    // of such a body: for a larger one nobody waits
)

// begin wraps a request and the writer of its answer.
func (s *Server) begin(w http.ResponseWriter, r *http.Request) (*exchange, *http.Request) {
	x := &exchange{ResponseWriter: w, control: http.NewResponseController(w), limits: &s.Limits, bodies: s.bodies}
	_ = x.control.SetWriteDeadline(time.Time{}) // that of the answer before
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		x.body, r.Body = r.Body, x
	}
	x.request = r
	return x, r
}

// end closes the exchange when its handler has returned.
func (x *exchange) end() {
	x.answer(http.StatusOK)
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime)) // for what is still buffered
	x.leave()
	x.bodies.release(x.account, x.reserved)
}

// leave lets another slow body be decoded.
func (x *exchange) leave() {
	if x.decoding {
		x.decoding = false
		<-x.bodies.decoders
	}
}

// Read reads the request's body. A client that sends it too slowly gets the
// fault of tooSlow.
func (x *exchange) Read(p []byte) (int, error) {
	begun := time.Now()
	if x.began.IsZero() {
		x.began = begun
	}
	deadline := begun.Add(x.limits.Grace - x.waited + time.Duration(float64(x.read)/float64(x.limits.Rate)*float64(time.Second)))
	if !x.until.IsZero() && x.until.Before(deadline) {
		deadline = x.until
	}
	_ = x.control.SetReadDeadline(deadline) // a connection that cannot is a test's
	n, err := x.body.Read(p)
	x.read += int64(n)
	x.waited += time.Since(begun)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, x.tooSlow()
	case err != nil:
		x.whole = errors.Is(err, io.EOF)
		_ = x.control.SetReadDeadline(time.Time{}) // what comes next is the watch for a client that goes away
	}
	return n, err
}

// Close implements io.Closer.
func (x *exchange) Close() error { return x.body.Close() }

func (x *exchange) tooSlow() error {
	f := domain.Errorf(domain.DeadlineExceeded, "the body arrived too slowly: %d bytes in %s; send at least %d bytes a second, pause for %s at most, and send a JSON body within %s",
		x.read, time.Since(x.began).Round(time.Second), x.limits.Rate, x.limits.Grace, x.limits.BodyTime)
	f.Reason = request.ReasonTooSlow
	return f
}

// answer decides what becomes of a body that is still unread: the rest of a
// short one is awaited for lingerTime, so that its connection can go on; a
// caller who is not known, or too slow, or sends too much, is not waited for.
func (x *exchange) answer(status int) {
	if x.answered {
		return
	}
	x.answered = true
	if x.body == nil || x.whole {
		return
	}
	deadline, unwanted := time.Now().Add(lingerTime), x.request.ContentLength > lingerBytes
	switch status {
	case http.StatusUnauthorized, http.StatusRequestTimeout, http.StatusRequestEntityTooLarge:
		unwanted = true
	}
	if unwanted {
		x.Header().Set("Connection", "close")
		deadline = time.Unix(1, 0)
	}
	_ = x.control.SetReadDeadline(deadline)
}

// WriteHeader implements http.ResponseWriter.
func (x *exchange) WriteHeader(status int) {
	if status >= http.StatusOK {
		x.answer(status)
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. Each piece of the data has a deadline
// of its own, so that a long answer may take long, but not stand still.
func (x *exchange) Write(data []byte) (written int, err error) {
	x.answer(http.StatusOK)
	for first := true; first || len(data) > 0; first = false {
		piece := data[:min(len(data), writePiece)]
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime)) // a connection that cannot is a test's
		n, err := x.ResponseWriter.Write(piece)
		written, data = written+n, data[n:]
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// FlushError sends what is buffered: see http.ResponseController.
func (x *exchange) FlushError() error {
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	return x.control.Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// ReadBody reads the whole body into memory: at most limit bytes, within
// Limits.BodyTime, and as long as there is memory for it.
func (x *exchange) ReadBody(r *http.Request, limit int64) ([]byte, error) {
	size := r.ContentLength
	if size > limit {
		return nil, request.BodyTooLarge(limit)
	}
	if size < 0 {
		size = limit // it does not say how long it is
	}
	if err := x.reserve(size); err != nil {
		return nil, err
	}
	if x.until.IsZero() {
		x.until = time.Now().Add(x.limits.BodyTime)
	}
	var data bytes.Buffer
	if r.ContentLength > 0 {
		data.Grow(int(size) + bytes.MinRead)
	}
	_, err := data.ReadFrom(http.MaxBytesReader(x, r.Body, limit))
	var fault *domain.Error
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &fault):
		return nil, fault
	case errors.As(err, &tooLarge):
		return nil, request.BodyTooLarge(limit)
	case err != nil:
		return nil, wire.Malformed("the body could not be read to its end: send it again")
	}
	if err := x.reserve(bodyCost(data.Bytes())); err != nil {
		return nil, err
	}
	if x.reserved > slowBody && !x.decoding {
		if err := x.bodies.enter(x.request.Context()); err != nil {
			return nil, err
		}
		x.decoding = true
	}
	return data.Bytes(), nil
}

// reserve raises the memory that is reserved for the body to n bytes.
func (x *exchange) reserve(n int64) error {
	if n <= x.reserved {
		return nil
	}
	err := x.bodies.reserve(x.request.Context(), x.account, x.reserved, n-x.reserved)
	if err == nil {
		x.reserved = n
	}
	return err
}

// ReleaseBody releases what decoding the body took; its texts stay in use.
func (x *exchange) ReleaseBody() {
	x.leave()
	if spare := x.reserved - x.read; spare > 0 {
		x.bodies.release(x.account, spare)
		x.reserved -= spare
	}
}

// Identify records whose request it is, and keeps its connection's place.
func (x *exchange) Identify(account string) {
	x.account = account
	know(x.request.Context(), account)
}
