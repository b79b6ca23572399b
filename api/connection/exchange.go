package connection

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

// An Exchange bounds how long one request uses its connection. The client must send the body and
// read the response at a minimum rate. The server closes a connection whose request body is unread
// when the response begins, unless the body is short.
type Exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	request *http.Request
	limits  *request.Limits
	body    io.ReadCloser // nil when the request has no body

	began    time.Time     // when reading the body began
	waited   time.Duration // time spent waiting for the body
	read     int64         // bytes of the body read so far
	whole    bool          // the body was read to its end
	until    time.Time     // deadline of the whole body; zero means none
	answered bool
	lingers  bool // End discards the rest of the body before the connection is closed

	bodies   *Budget
	account  string // account of the caller; "" until the caller is authenticated
	reserved int64  // bytes of memory reserved in bodies
	decoding bool   // the request holds a slot of bodies.decoders
}

type exchangeKey struct{}

// Of returns the exchange of a request; nil when Begin was not called for the request.
func Of(r *http.Request) *Exchange {
	x, _ := r.Context().Value(exchangeKey{}).(*Exchange)
	return x
}

// Bounds of writes, and of unread bodies.
const (
	writePiece  = 64 << 10         // bytes of a response that the client must read within Limits.AnswerTime
	reuseBytes  = 64 << 10         // maximum length of an unread body after which the connection is reused
	reuseTime   = time.Second      // maximum wait for the rest of a body of at most reuseBytes
	lingerTime  = 10 * time.Second // maximum time for which longer bodies are discarded
	lingerPause = time.Second      // maximum wait for each piece of a longer body
	lingerAlien = 2 * time.Second  // lingerTime of clients that are not authenticated
)

// Begin returns an exchange, which is the writer of the response, and a copy of the request r that
// contains the exchange. The caller must pass both to the handler, and call End when the handler
// has returned.
func Begin(limits *request.Limits, bodies *Budget, w http.ResponseWriter, r *http.Request) (*Exchange,
	*http.Request) {
	x := &Exchange{ResponseWriter: w, control: http.NewResponseController(w), limits: limits, bodies: bodies}
	_ = x.control.SetWriteDeadline(time.Time{}) // clears the deadline of the previous response
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		x.body, r.Body = r.Body, x
	}
	x.request = r
	return x, r
}

// End ends the exchange after the handler has returned, and releases the memory of the body.
func (x *Exchange) End() {
	x.answer(http.StatusOK)
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime)) // for data that net/http has buffered
	x.leave()
	x.bodies.release(x.account, x.reserved)
	x.linger()
}

// linger sends the response and discards the rest of a body that was not read. Many clients send the
// whole body before they read the response: if the connection is closed early, they report
// a reset connection instead of the response.
func (x *Exchange) linger() {
	if !x.lingers || x.FlushError() != nil {
		return
	}
	until := time.Now().Add(lingerTime)
	if x.account == "" {
		until = time.Now().Add(lingerAlien)
	}
	discarded := make([]byte, 32<<10)
	for err := error(nil); err == nil && time.Now().Before(until); {
		_ = x.control.SetReadDeadline(time.Now().Add(min(lingerPause, time.Until(until))))
		_, err = x.body.Read(discarded)
	}
	_ = x.control.SetReadDeadline(time.Unix(1, 0)) // so that net/http does not wait for the rest of the body
}

// leave releases the decoder slot, if the request holds one.
func (x *Exchange) leave() {
	if x.decoding {
		x.decoding = false
		<-x.bodies.decoders
	}
}

// Read implements io.Reader for the request's body. It returns the error of tooSlow when the client
// sends too slowly.
func (x *Exchange) Read(p []byte) (int, error) {
	begun := time.Now()
	if x.began.IsZero() {
		x.began = begun
	}
	deadline := begun.Add(x.limits.Grace - x.waited +
		time.Duration(float64(x.read)/float64(x.limits.Rate)*float64(time.Second)))
	if !x.until.IsZero() && x.until.Before(deadline) {
		deadline = x.until
	}
	_ = x.control.SetReadDeadline(deadline) // fails only for connections of tests
	n, err := x.body.Read(p)
	x.read += int64(n)
	x.waited += time.Since(begun)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, x.tooSlow()
	case err != nil:
		x.whole = errors.Is(err, io.EOF)
		_ = x.control.SetReadDeadline(time.Time{}) // from here on net/http only detects that the client disconnects
	}
	return n, err
}

// Close implements io.Closer.
func (x *Exchange) Close() error { return x.body.Close() }

func (x *Exchange) tooSlow() error {
	f := domain.Errorf(domain.DeadlineExceeded,
		"the body arrived too slowly: %d bytes in %s; send at least %d bytes a second, pause for %s at most, and send a "+
			"JSON body within %s",
		x.read, time.Since(x.began).Round(time.Second), x.limits.Rate, x.limits.Grace, x.limits.BodyTime)
	f.Reason = request.ReasonTooSlow
	return f
}

// answer decides what happens to an unread body when the response begins. The server waits up to
// reuseTime for the rest of a short body, so that the connection can be reused. After a longer body
// it closes the connection; End discards the body first, unless the client sends too slowly or waits
// for the server's consent (Expect: 100-continue) before it sends.
func (x *Exchange) answer(status int) {
	if x.answered {
		return
	}
	x.answered = true
	if x.body == nil || x.whole {
		return
	}
	long := x.request.ContentLength < 0 || x.request.ContentLength > reuseBytes
	if !long && status != http.StatusUnauthorized && status != http.StatusRequestTimeout {
		_ = x.control.SetReadDeadline(time.Now().Add(reuseTime))
		return
	}
	x.Header().Set("Connection", "close")
	_ = x.control.SetReadDeadline(time.Unix(1, 0))
	x.lingers = status != http.StatusRequestTimeout && x.request.ProtoMajor == 1 &&
		(x.read > 0 || x.request.Header.Get("Expect") == "")
}

// WriteHeader implements http.ResponseWriter.
func (x *Exchange) WriteHeader(status int) {
	if status >= http.StatusOK {
		x.answer(status)
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. It sets a new deadline for each writePiece bytes of the
// data, so that a response of any length can be sent as long as the client keeps reading.
func (x *Exchange) Write(data []byte) (written int, err error) {
	x.answer(http.StatusOK)
	for first := true; first || len(data) > 0; first = false {
		piece := data[:min(len(data), writePiece)]
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime)) // fails only for connections of tests
		n, err := x.ResponseWriter.Write(piece)
		written, data = written+n, data[n:]
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// FlushError sends buffered data: see http.ResponseController.
func (x *Exchange) FlushError() error {
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	return x.control.Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (x *Exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// ReadBody reads the whole body into memory: at most limit bytes, within Limits.BodyTime, and
// within the memory budget.
func (x *Exchange) ReadBody(r *http.Request, limit int64) ([]byte, error) {
	size := r.ContentLength
	if size > limit {
		return nil, request.BodyOfSizeTooLarge(limit, size)
	}
	if size < 0 {
		size = limit // the length of the body is unknown
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
		return nil, wire.Malformed("the body could not be read to its end: send the request again")
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

// reserve raises the memory reserved for the body to n bytes.
func (x *Exchange) reserve(n int64) error {
	if n <= x.reserved {
		return nil
	}
	err := x.bodies.reserve(x.request.Context(), x.account, x.reserved, n-x.reserved)
	if err == nil {
		x.reserved = n
	}
	return err
}

// ReleaseBody releases the memory that was reserved for decoding the body. The memory of the
// decoded strings stays reserved until End.
func (x *Exchange) ReleaseBody() {
	x.leave()
	if spare := x.reserved - x.read; spare > 0 {
		x.bodies.release(x.account, spare)
		x.reserved -= spare
	}
}

// Identify records the account of the request, and protects the request's connection from
// replacement by a new connection: see limitedListener.
func (x *Exchange) Identify(account string) {
	x.account = account
	Keep(x.request.Context(), account)
}
