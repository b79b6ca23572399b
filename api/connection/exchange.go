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

// An Exchange is an HTTP request and its response. It bounds how long they may use the connection:
// the client must send the body and read the response at a minimum rate. If the body is not read
// when the response begins, the server closes the connection, unless the body is short.
type Exchange struct {
	http.ResponseWriter
	control *http.ResponseController
	request *http.Request
	limits  *request.Limits
	body    io.ReadCloser // body of the request; nil if it has none

	began    time.Time     // time of the first read of the body
	waited   time.Duration // total time that reads of the body have blocked
	read     int64         // number of bytes of the body that were read
	bodyRead bool          // the body was read to its end
	until    time.Time     // time by which the whole body must have arrived; zero means no deadline
	answered bool
	lingers  bool // End reads and discards the rest of the body before the connection is closed

	bodies   *Budget
	account  string // account of the caller; "" before authentication
	reserved int64  // bytes of memory that the request has reserved in the Budget
	decoding bool   // the request holds a decoder slot of the Budget
}

type exchangeKey struct{}

// Of returns the exchange of a request; nil if Begin was not called for the request.
func Of(r *http.Request) *Exchange {
	x, _ := r.Context().Value(exchangeKey{}).(*Exchange)
	return x
}

// Bounds of the writes of responses, and of the reads of bodies that the handler did not read.
const (
	writeChunk = 64 << 10 // bytes of a response that the client must read within Limits.AnswerTime
	// maximum length of an unread body after which the connection is still reused
	reuseBytes  = 64 << 10
	reuseTime   = time.Second      // maximum wait for the rest of a body of at most reuseBytes
	lingerTime  = 10 * time.Second // maximum time to read and discard the rest of a longer body
	lingerPause = time.Second      // maximum wait for each read of such a longer body
	lingerAlien = 2 * time.Second  // lingerTime for clients that are not authenticated
)

// Begin returns the exchange of a request, and a copy of the request from which Of returns the
// exchange. The caller must call the handler with the exchange as the http.ResponseWriter and with
// the copy, and must call End after the handler has returned.
func Begin(limits *request.Limits, bodies *Budget, w http.ResponseWriter, r *http.Request) (*Exchange,
	*http.Request) {
	x := &Exchange{ResponseWriter: w, control: http.NewResponseController(w), limits: limits, bodies: bodies}
	_ = x.control.SetWriteDeadline(time.Time{}) // clears the deadline of the previous response on the connection
	r = r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		x.body, r.Body = r.Body, x
	}
	x.request = r
	return x, r
}

// End sends what remains of the response and releases the body's memory. The caller must call it
// after the handler has returned.
func (x *Exchange) End() {
	x.beginResponse(http.StatusOK)
	// deadline for sending what net/http has buffered
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	x.leave()
	x.bodies.release(x.account, x.reserved)
	x.linger()
}

// linger sends the response, and reads and discards the rest of the request's body. Many clients
// send the whole body before they read the response: if the connection is closed before that, they
// report a reset connection instead of the response.
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
	_ = x.control.SetReadDeadline(time.Unix(1, 0)) // keeps net/http from waiting for the rest of the body
}

// leave releases the decoder slot of the request, if it holds one.
func (x *Exchange) leave() {
	if x.decoding {
		x.decoding = false
		<-x.bodies.decoders
	}
}

// Read implements io.Reader for the request's body. It returns a REQUEST_TOO_SLOW error if the
// client sends the body too slowly.
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
	_ = x.control.SetReadDeadline(deadline) // returns an error only for connections of tests
	n, err := x.body.Read(p)
	x.read += int64(n)
	x.waited += time.Since(begun)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, x.tooSlow()
	case err != nil:
		x.bodyRead = errors.Is(err, io.EOF)
		// from now on, net/http reads only to detect that the client disconnects
		_ = x.control.SetReadDeadline(time.Time{})
	}
	return n, err
}

// Close implements io.Closer for the request's body.
func (x *Exchange) Close() error { return x.body.Close() }

func (x *Exchange) tooSlow() error {
	f := domain.Errorf(domain.DeadlineExceeded,
		"the body arrived too slowly: %d bytes in %s; send at least %d bytes a second, pause for %s at most, and send a "+
			"JSON body within %s",
		x.read, time.Since(x.began).Round(time.Second), x.limits.Rate, x.limits.Grace, x.limits.BodyTime)
	f.Reason = request.ReasonTooSlow
	return f
}

// beginResponse decides what happens to an unread body when the response begins. The server waits
// up to reuseTime for the rest of a short body, and reuses the connection. After a longer body it
// closes the connection. Before that, End discards the body, unless the client is too slow or has
// not begun to send the body because it waits for status 100 (Expect: 100-continue).
func (x *Exchange) beginResponse(status int) {
	if x.answered {
		return
	}
	x.answered = true
	if x.body == nil || x.bodyRead {
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
		x.beginResponse(status)
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	}
	x.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter. It sets a new deadline for each writeChunk bytes, so that a
// response of any length can be sent as long as the client keeps reading it.
func (x *Exchange) Write(data []byte) (written int, err error) {
	x.beginResponse(http.StatusOK)
	for first := true; first || len(data) > 0; first = false {
		piece := data[:min(len(data), writeChunk)]
		// returns an error only for connections of tests
		_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
		n, err := x.ResponseWriter.Write(piece)
		written, data = written+n, data[n:]
		if err != nil {
			return written, err
		}
	}
	return written, nil
}

// FlushError sends the data that net/http has buffered: see http.ResponseController.
func (x *Exchange) FlushError() error {
	_ = x.control.SetWriteDeadline(time.Now().Add(x.limits.AnswerTime))
	return x.control.Flush()
}

// Unwrap lets http.ResponseController reach the connection.
func (x *Exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// ReadBody returns the body of the request. It returns an error if the body has more than limit
// bytes, does not arrive within Limits.BodyTime, or exceeds the Budget.
func (x *Exchange) ReadBody(r *http.Request, limit int64) ([]byte, error) {
	size := r.ContentLength
	if size > limit {
		return nil, request.BodyOfSizeTooLarge(limit, size)
	}
	if size < 0 {
		size = limit // a body in chunked encoding has an unknown length
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
		return nil, wire.Malformed("the connection ended before the whole body was received: send the request again")
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

// reserve raises the memory that the request has reserved in the Budget to n bytes: see
// Budget.reserve.
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

// ReleaseBody releases the memory that was reserved to decode the body. The memory of the decoded
// strings stays reserved until End.
func (x *Exchange) ReleaseBody() {
	x.leave()
	if spare := x.reserved - x.read; spare > 0 {
		x.bodies.release(x.account, spare)
		x.reserved -= spare
	}
}

// Identify sets the account of the request. It also protects the request's connection from being
// replaced by a new connection: see limitedListener.
func (x *Exchange) Identify(account string) {
	x.account = account
	Keep(x.request.Context(), account)
}
