// Package download downloads recordings and images from URLs in requests of clients.
package download

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	"anneal/api/connection"
	"anneal/blobs/outbound"
	"anneal/domain"
)

// A Fetcher downloads files from URLs that clients choose. Against server-side request forgery, it
// uses no proxy and connects only to public addresses, unless it is configured otherwise. It checks
// the address of each connection rather than the URL's host name, because the name may resolve to
// another address the next time.
type Fetcher struct {
	client  *http.Client
	timeout time.Duration // maximum duration of one download
	instead string        // advice for errors: what a client can do instead of giving a URL
}

const (
	maxRedirects          = 5
	responseHeaderTimeout = 30 * time.Second
)

// A Dial opens a connection to an address: see net.Dialer.DialContext.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Fetcher that takes at most timeout for one file. dial opens its connections; nil
// means a dialer that rejects private addresses, unless private is true. instead is the advice in
// errors for clients, such as "upload the file".
func New(timeout time.Duration, private bool, dial Dial, instead string) *Fetcher {
	if dial == nil {
		dial = Dial(outbound.Dialer(private))
	}
	return &Fetcher{timeout: timeout, instead: instead, client: &http.Client{
		Transport: &http.Transport{DialContext: dial, TLSHandshakeTimeout: outbound.DialTimeout,
			ResponseHeaderTimeout:  responseHeaderTimeout,
			MaxResponseHeaderBytes: connection.MaxHeader, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errRedirects
			case !IsFetchable(r.URL.String()):
				return errLink
			}
			// the URL of the redirecting server may contain a signature, which must not reach
			// another server
			r.Header.Del("Referer")
			return nil
		},
	}}
}

// Errors about a URL. A Fetcher appends what a client can do instead of giving a URL.
var (
	errPrivate = errors.New("refers to a private address, to which this server does not connect")
	errLink    = errors.New("is redirected to a URL that is not http or https, or has a user name: give another URL")
)

var errRedirects = fmt.Errorf("is redirected more than %d times: give the URL of the last redirect", maxRedirects)

// IsFetchable reports whether text is a URL that a Fetcher accepts: http or https, with a host name
// and without a user name.
func IsFetchable(text string) bool {
	at, err := url.Parse(text)
	return err == nil && len(text) <= domain.MaxURL && (at.Scheme == "http" || at.Scheme == "https") &&
		at.Hostname() != "" && at.User == nil
}

// Get sends a GET request for the URL link. It returns the body of the response and its length in
// bytes, or -1 if the length is unknown. The caller must close the body. The errors continue a
// sentence that begins with the name of the field with the URL.
func (f *Fetcher) Get(ctx context.Context, link string) (body *Body, length int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		cancel()
		return nil, 0, f.or(errLink)
	}
	r.Header.Set("User-Agent", "anneal")
	response, err := f.client.Do(r)
	if err != nil {
		defer cancel()
		return nil, 0, f.clientError(ctx, err)
	}
	if response.StatusCode != http.StatusOK {
		cancel()
		_ = response.Body.Close()
		return nil, 0, fmt.Errorf("returns HTTP status %d: give the URL of a file, or %s",
			response.StatusCode, f.instead)
	}
	return &Body{body: response.Body, fetcher: f, ctx: ctx, cancel: cancel}, response.ContentLength, nil
}

// clientError returns the error that the client gets for err. It leaves out details of the server's
// network.
func (f *Fetcher) clientError(ctx context.Context, err error) error {
	if errors.Is(err, outbound.ErrPrivate) {
		return fmt.Errorf("%w: %s", errPrivate, f.instead)
	}
	if errors.Is(err, errRedirects) {
		return errRedirects
	}
	if errors.Is(err, errLink) {
		return f.or(errLink)
	}
	var name *net.DNSError
	var dialed *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("was not downloaded within %s: %s", f.timeout, f.instead)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &name):
		return errors.New("has a host name that does not resolve: correct the host name")
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return f.or(errors.New("refers to a server that cannot be reached: try again"))
	}
	return f.or(errors.New("could not be downloaded completely: try again"))
}

// or appends to err what the client can do instead of giving the URL.
func (f *Fetcher) or(err error) error { return fmt.Errorf("%w, or %s", err, f.instead) }

// A Body is the body of a download. Read returns errors for the client: see Fetcher.clientError.
// Close ends the download.
type Body struct {
	body    io.ReadCloser
	fetcher *Fetcher
	ctx     context.Context
	cancel  context.CancelFunc
	err     error // last error of Read other than io.EOF
}

func (b *Body) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.fetcher.clientError(b.ctx, err)
		b.err = err
	}
	return n, err
}

// Err returns the last error of Read other than io.EOF, so that a caller that copies the body can
// tell a failed download from a failed write.
func (b *Body) Err() error { return b.err }

// Close ends the download.
func (b *Body) Close() error {
	defer b.cancel()
	return b.body.Close()
}
