package request

import (
	"net/http"
	"net/netip"

	"anneal/domain"
)

// ClientAddress returns the IP address of the other end of the request's connection: the client, or a
// proxy. No header of the request changes it. It returns "" for a request without a connection, such
// as one of a batch.
func ClientAddress(r *http.Request) string {
	if r == nil {
		return ""
	}
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return at.Addr().Unmap().String()
}

// An ErrorObserver is a http.ResponseWriter that is told which error its response reports.
type ErrorObserver interface {
	ObserveError(f *domain.Error)
}

// observeError tells the writer of a response which error the response reports.
func observeError(w http.ResponseWriter, f *domain.Error) {
	for {
		if observer, ok := w.(ErrorObserver); ok {
			observer.ObserveError(f)
			return
		}
		wrapped, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return
		}
		w = wrapped.Unwrap()
	}
}
