package audio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"anneal/api/connection"
	"anneal/blobs/outbound"
	"anneal/domain"
)

// A fetcher downloads URLs that clients provide. To prevent server-side request forgery it uses no
// proxy and connects only to public addresses, unless configured otherwise. It checks the address
// of each connection and not the host name, because a host name may resolve differently each time.
type fetcher struct {
	client  *http.Client
	timeout time.Duration // maximum duration of one download
}

const (
	maxRedirects          = 5
	responseHeaderTimeout = 30 * time.Second
)

// A Dial connects to an address: see net.Dialer.DialContext.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

func newFetcher(timeout time.Duration, private bool, dial Dial) *fetcher {
	if dial == nil {
		dial = Dial(outbound.Dialer(private))
	}
	return &fetcher{timeout: timeout, client: &http.Client{
		Transport: &http.Transport{DialContext: dial, TLSHandshakeTimeout: outbound.DialTimeout,
			ResponseHeaderTimeout:  responseHeaderTimeout,
			MaxResponseHeaderBytes: connection.MaxHeader, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errRedirects
			case !isFetchable(r.URL.String()):
				return errLink
			}
			r.Header.Del("Referer") // the URL may be signed
			return nil
		},
	}}
}

var (
	errPrivate = errors.New(
		"refers to an address that is not public, which this server does not connect to: upload the file")
	errRedirects = fmt.Errorf("is redirected more than %d times: give the URL of the last redirect", maxRedirects)
	errLink      = errors.New(
		"is redirected to a URL that is not http or https, or has a user name: give another URL, or upload the file")
)

// get requests the URL link. It returns the body of the response and the length of the body in
// bytes, or -1 when the server does not state the length. The caller closes the body.
func (f *fetcher) get(ctx context.Context, link string) (body io.ReadCloser, length int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		cancel()
		return nil, 0, errLink
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
		return nil, 0, fmt.Errorf("returns HTTP status %d: give the URL of a file, or upload the file",
			response.StatusCode)
	}
	return &fetchedBody{response.Body, f, ctx, cancel}, response.ContentLength, nil
}

// clientError returns the error for the client. It omits details of this server's network.
func (f *fetcher) clientError(ctx context.Context, err error) error {
	if errors.Is(err, outbound.ErrPrivate) {
		return errPrivate
	}
	for _, known := range []error{errRedirects, errLink} {
		if errors.Is(err, known) {
			return known
		}
	}
	var name *net.DNSError
	var dialed *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("was not downloaded within %s: upload the file", f.timeout)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &name):
		return errors.New("has a host name that does not resolve: correct the host name")
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return errors.New("refers to a server that cannot be reached: try again, or upload the file")
	}
	return errors.New("could not be downloaded completely: try again, or upload the file")
}

// A fetchedBody is the body of a download. Read returns the errors of fetcher.clientError, and
// Close ends the download.
type fetchedBody struct {
	io.ReadCloser
	fetcher *fetcher
	ctx     context.Context
	cancel  context.CancelFunc
}

func (b *fetchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = b.fetcher.clientError(b.ctx, err)
	}
	return n, err
}

func (b *fetchedBody) Close() error {
	defer b.cancel()
	return b.ReadCloser.Close()
}

// fetch downloads the recording at the URL link, and stores it as the file of the form.
func (in *formReader) fetch(link string) error {
	field := "url"
	if in.given("file") {
		field = "file"
	}
	invalid := func(err error) error {
		if in.Ctx.Err() != nil {
			return in.Ctx.Err()
		}
		var v domain.Violations
		v.Add(field, "%s", err)
		return v.Err()
	}
	body, length, err := in.service.fetcher.get(in.Ctx, link)
	if err != nil {
		return invalid(err)
	}
	defer body.Close()
	if length > in.Limit.Bytes {
		return invalid(in.tooLarge())
	}
	src := &errorRecorder{Reader: &io.LimitedReader{R: body, N: in.Limit.Bytes + 1}}
	size, err := in.service.Uploads.Blobs.Put(in.Ctx, in.Files.Prefix+audioFile, src)
	switch {
	case err != nil && src.err != nil:
		return invalid(src.err)
	case err != nil:
		return err
	case size > in.Limit.Bytes:
		return invalid(in.tooLarge())
	case size == 0:
		return invalid(errors.New("refers to an empty file: give the URL of a recording"))
	}
	in.Files.Sizes[audioFile] = size
	return nil
}

func (in *formReader) tooLarge() error {
	return fmt.Errorf("refers to a file that exceeds the limit of %d bytes: %s", in.Limit.Bytes, splitHint)
}

// An errorRecorder passes reads to its Reader and records in err the last error except io.EOF.
type errorRecorder struct {
	io.Reader
	err error
}

func (r *errorRecorder) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
