package described

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/getkin/kin-openapi/openapi3"
)

// A Transport is an http.RoundTripper that validates all exchanges of a client with a server
// against the OpenAPI document that the server serves. It reads a response completely before it
// returns the response to the client, except for a stream, which it validates line by line as the
// client reads it.
type Transport struct {
	// Address is the URL of the server. Requests to other addresses are not validated.
	Address string
	// Documents fetches the OpenAPI document from the server.
	Documents *Fetch
	// Report is called for each mismatch with the document.
	Report func(error)
}

// A Fetch fetches the OpenAPI document once, from the first server that responds. The Transports of
// several servers of the same build can share a Fetch.
type Fetch struct {
	mu  sync.Mutex
	doc *Document
}

// from returns the document. The first successful call fetches it from the server at address.
func (f *Fetch) from(address string) (*Document, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.doc != nil {
		return f.doc, nil
	}
	res, err := http.Get(address + "/openapi.json")
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s/openapi.json: %s", address, res.Status)
	}
	f.doc, err = Read(data)
	return f.doc, err
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r, sent, err := readBody(r)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !strings.HasPrefix(r.URL.String(), t.Address+"/") || outside(r) {
		return res, err
	}
	doc, err := t.Documents.from(t.Address)
	if err != nil {
		return res, nil // the test may have killed the server; the next exchange fetches the document again
	}
	x := Exchange{Request: r, Sent: sent, Status: res.StatusCode, Header: res.Header}
	if isStream(res.Header) {
		res.Body = t.watch(doc, x, res.Body)
		return res, nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil { // the response was interrupted; the client gets the same error when it reads the body
		res.Body = &broken{bytes.NewReader(body), res.Body, err}
		return res, nil
	}
	_ = res.Body.Close()
	res.Body, x.Body = io.NopCloser(bytes.NewReader(body)), body
	if err := doc.ValidateExchange(x); err != nil {
		t.Report(err)
	}
	return res, nil
}

// maxBody is the maximum size, in bytes, of request bodies that are validated.
const maxBody = 1 << 20

// readBody returns a request that can still be sent, and its body. The body is nil if the request
// has none, has a form or a body of unknown length, or has a body of more than maxBody bytes.
func readBody(r *http.Request) (*http.Request, []byte, error) {
	if r.Body == nil || r.ContentLength < 0 || r.ContentLength > maxBody ||
		strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return r, nil, nil
	}
	data, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, nil, err
	}
	again := r.Clone(r.Context()) // an http.RoundTripper must not modify its request
	again.Body = io.NopCloser(bytes.NewReader(data))
	return again, data, nil
}

// watch validates the request of a stream, and returns a body that validates each line of the
// stream as the client reads it.
func (t *Transport) watch(doc *Document, x Exchange, body io.ReadCloser) io.ReadCloser {
	// x.Body is empty here: the lines of the stream are validated as they are read
	if err := doc.ValidateExchange(x); err != nil {
		t.Report(err)
	}
	watched := &watched{ReadCloser: body, doc: doc, report: t.Report}
	if _, _, op := doc.find(x.Request); op != nil {
		watched.of, _ = streamOf(x.Request, op) // ValidateExchange has reported the error
	}
	return watched
}

// watched is the body of a stream of events. Read validates each complete line against the
// document.
type watched struct {
	io.ReadCloser
	doc    *Document
	of     *openapi3.Schema
	line   []byte // bytes after the last newline that was read
	report func(error)
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	w.line = append(w.line, p[:n]...)
	for {
		line, rest, whole := bytes.Cut(w.line, []byte("\n"))
		if !whole {
			return n, err
		}
		if err := w.doc.validateLine(w.of, line); err != nil {
			w.report(err)
		}
		w.line = bytes.Clone(rest)
	}
}

// broken is the body of a response that was interrupted: Read returns the bytes that were received,
// and then err.
type broken struct {
	*bytes.Reader
	io.Closer
	err error
}

func (b *broken) Read(p []byte) (int, error) {
	if n, err := b.Reader.Read(p); err == nil {
		return n, nil
	}
	return 0, b.err
}
