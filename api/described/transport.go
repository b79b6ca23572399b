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

// A Transport holds every exchange of an http.Client against the document that
// the server serves. It reads answers whole before the client does, but for
// streams, of which it reads each line with the client.
type Transport struct {
	// Address is the server's; what is asked of others passes.
	Address string
	// Documents has what the server says of itself.
	Documents *Fetch
	// Report is told of every disagreement.
	Report func(error)
}

// A Fetch reads the document of the first server that answers, for the
// Transports of all servers of the same build.
type Fetch struct {
	mu  sync.Mutex
	doc *Document
}

// from answers the document, read from a server when it is not known yet.
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
	r, sent, err := whole(r)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultTransport.RoundTrip(r)
	if err != nil || !strings.HasPrefix(r.URL.String(), t.Address+"/") || outside(r) {
		return res, err
	}
	doc, err := t.Documents.from(t.Address)
	if err != nil {
		return res, nil // it is asked again with the next exchange; a server that is killed answers nothing
	}
	x := Exchange{Request: r, Sent: sent, Status: res.StatusCode, Header: res.Header}
	if isStream(res.Header) {
		res.Body = t.watch(doc, x, res.Body)
		return res, nil
	}
	body, err := io.ReadAll(res.Body)
	if err != nil { // the answer broke off, which is for the client to see
		res.Body = &broken{bytes.NewReader(body), res.Body, err}
		return res, nil
	}
	_ = res.Body.Close()
	res.Body, x.Body = io.NopCloser(bytes.NewReader(body)), body
	if _, _, err := doc.Hold(x); err != nil {
		t.Report(err)
	}
	return res, nil
}

// mostSent is the longest body that is held in memory to be looked at.
const mostSent = 1 << 20

// whole answers the request with its JSON body, nil when it has none or one of
// another kind.
func whole(r *http.Request) (*http.Request, []byte, error) {
	if r.Body == nil || r.ContentLength < 0 || r.ContentLength > mostSent || strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		return r, nil, nil
	}
	data, err := io.ReadAll(r.Body)
	if err = errors.Join(err, r.Body.Close()); err != nil {
		return nil, nil, err
	}
	again := r.Clone(r.Context()) // a transport leaves its request as it was
	again.Body = io.NopCloser(bytes.NewReader(data))
	return again, data, nil
}

// watch holds the request of a stream, and then each of its lines as it is read.
func (t *Transport) watch(doc *Document, x Exchange, body io.ReadCloser) io.ReadCloser {
	if _, _, err := doc.Hold(x); err != nil { // of no lines yet
		t.Report(err)
	}
	watched := &watched{ReadCloser: body, doc: doc, report: t.Report}
	if _, _, op := doc.find(x.Request); op != nil {
		watched.of, _ = streamOf(x.Request, op) // said above
	}
	return watched
}

// watched is a stream whose lines are held against the document.
type watched struct {
	io.ReadCloser
	doc    *Document
	of     *openapi3.Schema
	line   []byte // that has not ended yet
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
		if err := w.doc.holdLine(w.of, line); err != nil {
			w.report(err)
		}
		w.line = bytes.Clone(rest)
	}
}

// broken is an answer that broke off.
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
