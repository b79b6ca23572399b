// Package download downloads files from URLs that clients provide.
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

// A Fetcher downloads URLs that clients provide. To prevent server-side request forgery it uses no
// proxy and connects only to public addresses, unless configured otherwise. It checks the address
// of each connection and not the host name, because a host name may resolve differently each time.
type Fetcher struct {
	client  *http.Client
	timeout time.Duration // maximum duration of one download
	instead string        // what a client can do instead, for errors
}

const (
	maxRedirects          = 5
	responseHeaderTimeout = 30 * time.Second
)

// A Dial connects to an address: see net.Dialer.DialContext.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// New returns a Fetcher that takes at most timeout for one file. It connects with dial; nil means a
// dialer that rejects addresses that are not public, unless private is true. instead is what a
// client can do instead of giving a URL, such as "upload the file".
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
			r.Header.Del("Referer") // the URL may be signed
			return nil
		},
	}}
}

// Errors to which a Fetcher appends what the client can do instead of giving the URL.
var (
	errPrivate = errors.New("refers to an address that is not public, which this server does not connect to")
	errLink    = errors.New("is redirected to a URL that is not http or https, or has a user name: give another URL")
)

var errRedirects = fmt.Errorf("is redirected more than %d times: give the URL of the last redirect", maxRedirects)

// IsFetchable reports whether a text is an http or https URL that a Fetcher accepts.
func IsFetchable(text string) bool {
	at, err := url.Parse(text)
	return err == nil && len(text) <= domain.MaxURL && (at.Scheme == "http" || at.Scheme == "https") &&
		at.Hostname() != "" && at.User == nil
}

// Get requests the URL link. It returns the body of the response and the length of the body in
// bytes, or -1 when the server does not state the length. The caller closes the body. Errors complete
// a sentence that begins with the name of a field.
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

// clientError returns the error for the client. It omits details of this server's network.
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

// or adds to err what the client can do instead.
func (f *Fetcher) or(err error) error { return fmt.Errorf("%w, or %s", err, f.instead) }

// A Body is the body of a download. Read returns the errors of Fetcher.clientError, and Close ends
// the download.
type Body struct {
	body    io.ReadCloser
	fetcher *Fetcher
	ctx     context.Context
	cancel  context.CancelFunc
	err     error // the last error of Read except io.EOF
}

func (b *Body) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.fetcher.clientError(b.ctx, err)
		b.err = err
	}
	return n, err
}

// Err returns the last error of Read except io.EOF, so that a reader can tell a failed download from
// a failure to store it.
func (b *Body) Err() error { return b.err }

// Close ends the download.
func (b *Body) Close() error {
	defer b.cancel()
	return b.body.Close()
}
