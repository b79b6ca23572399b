package request

import (
	"net/http"
	"net/netip"

	"anneal/domain"
)

// ClientAddress returns the IP address of the peer of the request's connection, which is the client
// or a proxy. It ignores headers such as X-Forwarded-For. It returns "" for a request without a
// connection, such as a request of a batch.
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

// An ErrorObserver is an http.ResponseWriter that records which error its response reports.
type ErrorObserver interface {
	ObserveError(f *domain.Error)
}

// ObserveError passes the error of a response to its writer, if that is an ErrorObserver.
func ObserveError(w http.ResponseWriter, f *domain.Error) {
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
