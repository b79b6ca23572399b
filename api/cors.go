package api

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
)

// AnyOrigin in Options.Origins allows the pages of every origin.
const AnyOrigin = "*"

// CheckOrigin returns an error unless origin is AnyOrigin, or the origin of a web page as browsers
// send it in the header Origin, such as https://app.example.com or http://localhost:3000.
func CheckOrigin(origin string) error {
	u, err := url.Parse(origin)
	switch {
	case origin == AnyOrigin:
		return nil
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return errors.New("must be *, or http:// or https:// followed by a host")
	case strings.Contains(u.Host, "*"):
		return errors.New("must be * alone or name one host: a wildcard within a host is not supported")
	case origin != u.Scheme+"://"+u.Host:
		return errors.New("must be a scheme, a host and optionally a port, without a path or a user name")
	case origin != strings.ToLower(origin):
		return errors.New("must be in lower case, as browsers send it")
	case u.Scheme == "http" && u.Port() == "80" || u.Scheme == "https" && u.Port() == "443":
		return fmt.Errorf("must leave out the port %s, because browsers leave it out", u.Port())
	}
	return nil
}

// preflightMaxAge is how long a browser may reuse the response to a preflight request.
const preflightMaxAge = 10 * time.Minute

// requestHeaders lists the request headers that the API reads. A preflight response also
// allows every other header that the browser lists, because client libraries add headers of their
// own, which the server ignores.
const requestHeaders = "Authorization, Content-Type"

// A corsPolicy states which web pages of other origins may read responses (Cross-Origin Resource
// Sharing, CORS). Without allowed origins, responses have no CORS headers.
type corsPolicy struct {
	origins []string
	exposed string // value of Access-Control-Expose-Headers: response headers that scripts may read
}

// newCORSPolicy returns the policy for the allowed origins. Scripts may read all response headers
// that the operations in the table declare.
func newCORSPolicy(origins []string, table []request.Operation) corsPolicy {
	names := map[string]bool{}
	for _, name := range []string{request.RequestIDHeader, request.TraceParentHeader, request.ReplayedHeader,
		request.TicketHeader, request.WarningHeader, request.PositionHeader, request.StaleHeader, request.NoRetryHeader,
		"Retry-After", "Content-Disposition", "X-RateLimit-Limit-Requests",
		"X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests"} {
		names[name] = true
	}
	for _, op := range table {
		for _, header := range op.ResponseHeaders {
			names[header.Name] = true
		}
	}
	return corsPolicy{origins, strings.Join(wire.SortedKeys(names), ", ")}
}

// allow is middleware that lets pages of the allowed origins read the response. The responses have
// no Access-Control-Allow-Credentials, because the API uses no cookies: a page needs an API
// key.
func (p corsPolicy) allow(next http.Handler) http.Handler {
	if len(p.origins) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header, origin := w.Header(), r.Header.Get("Origin")
		switch {
		case slices.Contains(p.origins, AnyOrigin):
			header.Set("Access-Control-Allow-Origin", AnyOrigin)
			header.Set("Access-Control-Expose-Headers", p.exposed)
		default:
			header.Add("Vary", "Origin")
			if slices.Contains(p.origins, origin) {
				header.Set("Access-Control-Allow-Origin", origin)
				header.Set("Access-Control-Expose-Headers", p.exposed)
			}
		}
		next.ServeHTTP(w, r)
	})
}

// options is middleware that responds to OPTIONS requests with the methods that their path allows.
// A preflight request of an allowed origin is allowed every method, even for an unknown path:
// otherwise the browser would hide the error of the following request from the script.
func (s *Server) options(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var methods string
		if r.Method == http.MethodOptions {
			methods = strings.Join(s.methodsOf(r), ", ")
		}
		header := w.Header()
		preflight := r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" &&
			header.Get("Access-Control-Allow-Origin") != ""
		if methods == "" && !preflight {
			next.ServeHTTP(w, r)
			return
		}
		if methods != "" {
			header.Set("Allow", methods)
		}
		if preflight {
			header.Del("Access-Control-Expose-Headers") // has no effect in a preflight response
			header.Add("Vary", "Access-Control-Request-Headers")
			header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, PUT, PATCH, DELETE")
			header.Set("Access-Control-Allow-Headers", headersFor(r))
			header.Set("Access-Control-Max-Age", strconv.Itoa(int(preflightMaxAge.Seconds())))
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// maxRequestedHeaders bounds the length, in bytes, of the list of headers that a preflight response
// copies from the request.
const maxRequestedHeaders = 4 << 10

// headersFor returns the headers that the response to a preflight request allows: requestHeaders
// and the headers that the preflight request lists. It leaves the latter out if they are longer
// than maxRequestedHeaders.
func headersFor(r *http.Request) string {
	requested := r.Header.Get("Access-Control-Request-Headers")
	if requested == "" || len(requested) > maxRequestedHeaders {
		return requestHeaders
	}
	return requestHeaders + ", " + requested
}
