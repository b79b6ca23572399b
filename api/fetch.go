package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"anneal/domain"
)

// A fetcher reads what a URL of a caller leads to. It asks no proxy, and talks
// to no address that leads into this machine or the networks around it, unless
// it may: addresses are judged as they are dialled, whatever a name resolved to
// before.
type fetcher struct {
	client *http.Client
	time   time.Duration // that one fetch may take
}

const (
	maxRedirects = 5
	dialTime     = 10 * time.Second
	answerBegins = 30 * time.Second
)

func newFetcher(time time.Duration, private bool) *fetcher {
	dialer := &net.Dialer{Timeout: dialTime, Control: func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && (private || public(at.Addr())) {
			return nil
		}
		return errPrivate
	}}
	return &fetcher{time: time, client: &http.Client{
		Transport: &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: dialTime, ResponseHeaderTimeout: answerBegins,
			MaxResponseHeaderBytes: maxHeader, DisableCompression: true, DisableKeepAlives: true},
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case len(via) > maxRedirects:
				return errRedirects
			case !isLink(r.URL.String()):
				return errLink
			}
			r.Header.Del("Referer") // it may carry a signature
			return nil
		},
	}}
}

var (
	errPrivate   = errors.New("leads to an address that is not public, which this server does not fetch from: upload the file")
	errRedirects = fmt.Errorf("leads on more than %d times: give the URL that it leads to", maxRedirects)
	errLink      = errors.New("leads to what is no URL of http or https without a user's name: give another URL, or upload the file")
)

// get opens what a URL leads to, of which it answers the length; -1 is not
// known. Close ends it.
func (f *fetcher) get(ctx context.Context, link string) (body io.ReadCloser, length int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, f.time)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		cancel()
		return nil, 0, errLink
	}
	r.Header.Set("User-Agent", "anneal")
	answer, err := f.client.Do(r)
	if err != nil {
		defer cancel()
		return nil, 0, f.why(ctx, err)
	}
	if answer.StatusCode != http.StatusOK {
		cancel()
		_ = answer.Body.Close()
		return nil, 0, fmt.Errorf("is answered with status %d: give a URL that leads to the file, or upload it", answer.StatusCode)
	}
	return &fetched{answer.Body, f, ctx, cancel}, answer.ContentLength, nil
}

// why is the reason of a failure, as far as it concerns the caller: what else
// errors tell is of this machine.
func (f *fetcher) why(ctx context.Context, err error) error {
	for _, known := range []error{errPrivate, errRedirects, errLink} {
		if errors.Is(err, known) {
			return known
		}
	}
	var name *net.DNSError
	var dialed *net.OpError
	switch {
	case errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return fmt.Errorf("was not read within %s: upload the file", f.time)
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &name):
		return errors.New("names a host that is not found: correct it")
	case errors.As(err, &dialed) && dialed.Op == "dial":
		return errors.New("leads to a server that does not answer: try again, or upload the file")
	}
	return errors.New("could not be read to its end: try again, or upload the file")
}

type fetched struct {
	io.ReadCloser
	by     *fetcher
	ctx    context.Context
	cancel context.CancelFunc
}

func (f *fetched) Read(p []byte) (int, error) {
	n, err := f.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = f.by.why(f.ctx, err)
	}
	return n, err
}

func (f *fetched) Close() error {
	defer f.cancel()
	return f.ReadCloser.Close()
}

// special are the networks of IPv4 and IPv6 that are not part of the public
// internet (IANA's registries of special-purpose addresses), beyond those that
// netip knows.
var special = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

var (
	global = netip.MustParsePrefix("2000::/3")
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
)

// public tells whether an address is one of the public internet's. One that
// carries an IPv4 address is as public as that.
func public(a netip.Addr) bool {
	a = a.Unmap()
	if a.Is6() {
		if bytes := a.As16(); nat64.Contains(a) {
			return public(netip.AddrFrom4([4]byte(bytes[12:])))
		}
		if !global.Contains(a) || a.Zone() != "" {
			return false
		}
	}
	if a.IsUnspecified() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() {
		return false
	}
	for _, p := range special {
		if p.Contains(a) {
			return false
		}
	}
	return true
}

// fetch stores what the URL of a form leads to.
func (in *recording) fetch(link string) error {
	field := "url"
	if in.given("file") {
		field = "file"
	}
	wrong := func(err error) error {
		if in.Ctx.Err() != nil {
			return in.Ctx.Err()
		}
		var v domain.Violations
		v.Add(field, "%s", err)
		return v.Err()
	}
	body, length, err := in.server.fetcher.get(in.Ctx, link)
	if err != nil {
		return wrong(err)
	}
	defer body.Close()
	if length > in.limit.bytes {
		return wrong(in.tooLarge())
	}
	watched := &watchedReader{Reader: &io.LimitedReader{R: body, N: in.limit.bytes + 1}}
	size, err := in.server.Blobs.Put(in.Ctx, in.files.Folder+audioFile, watched)
	switch {
	case err != nil && watched.err != nil:
		return wrong(watched.err)
	case err != nil:
		return err
	case size > in.limit.bytes:
		return wrong(in.tooLarge())
	case size == 0:
		return wrong(errors.New("leads to an empty file: give the URL of a recording"))
	}
	in.files.Sizes[audioFile] = size
	return nil
}

func (in *recording) tooLarge() error {
	return fmt.Errorf("leads to a file larger than the %d bytes that a recording may have: %s", in.limit.bytes, howToCut)
}

// A watchedReader remembers why reading failed.
type watchedReader struct {
	io.Reader
	err error
}

func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		r.err = err
	}
	return n, err
}
