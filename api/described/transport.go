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

// A Transport validates every exchange of an http.Client against the document that the server
// serves. It reads a response completely before it returns the response to the client. It validates
// a stream line by line, as the client reads it.
type Transport struct {
	// Address is the URL of the server. Requests to other addresses are not validated.
	Address string
	// Documents fetches the document of the server.
	Documents *Fetch
	// Report is called with each mismatch.
	Report func(error)
}

// A Fetch reads the document once, from the first server that responds. The Transports of all
// servers of one build can share it.
type Fetch struct {
	mu  sync.Mutex
	doc *Document
}

// from returns the document. The first call fetches the document from the server at address.
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
		return res, nil // the server may have been killed; the next exchange fetches the document again
	}
	x := Exchange{Request: r, Sent: sent, Status: res.StatusCode, Header: res.Header}
	if isStream(res.Header) {
		res.Body = t.watch(doc, x, res.Body)
		return res, nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil { // the response was interrupted: the client gets the same error
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

// maxBody bounds the request bodies that are validated, in bytes.
const maxBody = 1 << 20

// readBody returns the request and the bytes of its body. The bytes are nil when the body is absent,
// is a form, has an unknown length, or exceeds maxBody.
func readBody(r *http.Request) (*http.Request, []byte, error) {
	if r.Body == nil || r.ContentLength < 0 || r.ContentLength > maxBody ||
		strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return r, nil, nil
	}
	data, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, nil, err
	}
	again := r.Clone(r.Context()) // a transport must not modify its request
	again.Body = io.NopCloser(bytes.NewReader(data))
	return again, data, nil
}

// watch validates the request of a stream, and each line of the stream as the client reads it.
func (t *Transport) watch(doc *Document, x Exchange, body io.ReadCloser) io.ReadCloser {
	if err := doc.ValidateExchange(x); err != nil { // x.Body has no lines yet
		t.Report(err)
	}
	watched := &watched{ReadCloser: body, doc: doc, report: t.Report}
	if _, _, op := doc.find(x.Request); op != nil {
		watched.of, _ = streamOf(x.Request, op) // ValidateExchange has reported the error
	}
	return watched
}

// watched is the body of a stream. Read validates each complete line against the document.
type watched struct {
	io.ReadCloser
	doc    *Document
	of     *openapi3.Schema
	line   []byte // bytes after the last newline
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

// broken is the body of a response that was interrupted. After the bytes that were received, Read
// returns err.
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
