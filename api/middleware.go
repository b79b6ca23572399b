package api

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/domain"
)

// identify is middleware that sets the ID of the request: the ID in the request's header if it is
// well-formed, otherwise a new UUID. The response has the request's traceparent if it is valid.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(request.RequestIDHeader)
		if !plainID(id) {
			id = uuid.Must(uuid.NewV7()).String()
		}
		w.Header().Set(request.RequestIDHeader, id)
		if trace := request.TraceOf(r); trace.Parent != "" {
			w.Header().Set(request.TraceParentHeader, trace.Parent)
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.RequestIDKey{}, id)))
	})
}

func plainID(id string) bool {
	for _, c := range id {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' && c != '.' {
			return false
		}
	}
	return id != "" && len(id) <= 128
}

// A recorder is an http.ResponseWriter that records the status of the response, its call and its
// error, for metrics and the audit stream.
type recorder struct {
	http.ResponseWriter
	status int
	call   *request.Call // nil when the request reached no operation
	reason string        // reason of the error in the response; "" if there is none
	cut    bool          // a failure cut the response off
}

func (r *recorder) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
	r.ResponseWriter.WriteHeader(status)
}

func (r *recorder) Write(data []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	return r.ResponseWriter.Write(data)
}

// Unwrap lets http.ResponseController reach the connection.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// observe is middleware that records metrics of the request, and logs the request without its query
// and headers, which may contain secrets. Refused and failed requests and logins are also recorded in
// the audit stream.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		recorded := &recorder{ResponseWriter: w}
		defer func() { s.record(recorded, r) }()
		next.ServeHTTP(recorded, r)
		took, route := time.Since(start), chi.RouteContext(r.Context()).RoutePattern()
		s.meters.request(route, r.Method, recorded.status, took)
		s.logRequest(recorded, r, took)
	})
}

// logRequest logs a request at the level info: who sent it, and which response it got. Requests of
// operations without a key, such as health checks and pages of the console, are at the level debug.
func (s *Server) logRequest(response *recorder, r *http.Request, took time.Duration) {
	level := slog.LevelInfo
	if c := response.call; c != nil && c.Operation.Gate == request.Everyone && response.status < http.StatusBadRequest {
		level = slog.LevelDebug
	}
	if !s.Logger.Enabled(r.Context(), level) {
		return
	}
	attributes := []slog.Attr{slog.String("request", request.RequestID(r)), slog.String("method", r.Method),
		slog.String("path", r.URL.Path), slog.Int("status", response.status), slog.Duration("took", took)}
	if c := response.call; c != nil && callerIn(c) != "" {
		attributes = append(attributes, slog.String("principal", callerIn(c)))
	}
	if s.Addresses {
		attributes = append(attributes, slog.String("address", request.ClientAddress(r)))
	}
	if position, err := strconv.ParseUint(response.Header().Get(request.PositionHeader), 10, 64); err == nil {
		attributes = append(attributes, slog.Uint64("position", position))
	}
	if response.reason != "" {
		attributes = append(attributes, slog.String("reason", response.reason))
	}
	s.Logger.LogAttrs(r.Context(), level, "request", attributes...)
}

// recover is middleware that responds with 500 when a handler panics, so that the panic does not
// end the process.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			cause := recover()
			if cause == nil {
				return
			}
			if cause == http.ErrAbortHandler {
				panic(cause)
			}
			s.Logger.Error("panic", "request", request.RequestID(r), "method", r.Method, "path", r.URL.Path, "cause",
				fmt.Sprint(cause), "stack", string(debug.Stack()))
			if recorded, ok := w.(*recorder); ok && recorded.status != 0 {
				recorded.cut, recorded.reason = true, domain.Internal.String()
				// the response has begun, so only closing the connection shows the client that it
				// is incomplete
				panic(http.ErrAbortHandler)
			}
			request.WriteError(w, request.ErrorOf(domain.Errorf(domain.Internal,
				"internal error: report the request ID to the server's operator: %s", request.RequestID(r))), request.RequestID(r),
				s.formats.isInference(r))
		}()
		next.ServeHTTP(w, r)
	})
}

// methodsOf returns the methods that the request's path allows; none if no operation has the path.
// A verb after a colon is part of the path, because a resource and its verbs allow different
// methods.
func (s *Server) methodsOf(r *http.Request) (allowed []string) {
	if strings.HasPrefix(r.URL.Path, signedPath) {
		return []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodOptions}
	}
	routes, ok := s.routes.(chi.Routes)
	if request.IsDirect(r) {
		routes, ok = s.direct.routes, true
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete} {
		found := chi.NewRouteContext()
		if !ok || !routes.Match(found, method, r.URL.Path) || !strings.HasSuffix(found.RoutePattern(), "*") &&
			request.VerbOf(found.RoutePattern()) != request.VerbOf(r.URL.Path) {
			continue
		}
		if allowed = append(allowed, method); method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	if len(allowed) > 0 {
		allowed = append(allowed, http.MethodOptions)
	}
	return allowed
}
