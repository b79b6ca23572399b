package api

import (
	"context"
	"fmt"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/domain"
)

// identify gives the request an ID: the client's, when it is a plain one.
func (s *Server) identify(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id := r.Header.Get(request.RequestIDHeader)
		if !plainID(id) {
			id = uuid.Must(uuid.NewV7()).String()
		}
		w.Header().Set(request.RequestIDHeader, id)
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

// A recorder remembers what was answered.
type recorder struct {
	http.ResponseWriter
	status int
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

// observe measures the request and notes it in the log, without its query and
// headers, which may carry secrets.
func (s *Server) observe(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		start := time.Now()
		recorded := &recorder{ResponseWriter: w}
		next.ServeHTTP(recorded, r)
		took, route := time.Since(start), chi.RouteContext(r.Context()).RoutePattern()
		s.meters.request(route, r.Method, recorded.status, took)
		s.Logger.Debug("request", "request", request.RequestID(r), "method", r.Method, "path", r.URL.Path, "status", recorded.status, "took", took)
	})
}

// recover answers a panic with 500, so that one request's fault is not
// everybody's.
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
			s.Logger.Error("panic", "request", request.RequestID(r), "method", r.Method, "path", r.URL.Path, "cause", fmt.Sprint(cause), "stack", string(debug.Stack()))
			if recorded, ok := w.(*recorder); ok && recorded.status != 0 {
				panic(http.ErrAbortHandler) // the answer has begun: only breaking it off says that it is not whole
			}
			request.WriteError(w, request.ErrorOf(domain.Errorf(domain.Internal, "the server failed to answer; give its operator the request's ID, %s", request.RequestID(r))), request.RequestID(r), request.IsInference(r))
		}()
		next.ServeHTTP(w, r)
	})
}

// methodsOf are the methods that the request's path answers. A verb after a
// colon belongs to the path: what answers a resource does not answer its verbs.
func (s *Server) methodsOf(r *http.Request) (allowed []string) {
	routes, ok := s.routes.(chi.Routes)
	if request.IsDirect(r) {
		routes, ok = s.direct.routes, true
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodPut, http.MethodDelete} {
		found := chi.NewRouteContext()
		if !ok || !routes.Match(found, method, r.URL.Path) || request.VerbOf(found.RoutePattern()) != request.VerbOf(r.URL.Path) {
			continue
		}
		if allowed = append(allowed, method); method == http.MethodGet {
			allowed = append(allowed, http.MethodHead)
		}
	}
	return allowed
}
