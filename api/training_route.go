package api

import (
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"anneal/api/request"
	"anneal/api/tinker"
	"anneal/api/wire"
	"anneal/domain"
)

// trainingRoutes returns the router of the requests that are sent to the host name of a trainer
// job.
func (s *Server) trainingRoutes(find func(http.Handler) http.Handler) chi.Router {
	routes := chi.NewRouter()
	routes.Use(s.identify, s.observe, s.recover, s.cors.allow, find, trainingKey, middleware.GetHead)
	routes.NotFound(func(w http.ResponseWriter, r *http.Request) {
		tinker.WriteError(w, tinker.NotFound(r.URL.Path), request.RequestID(r))
	})
	routes.MethodNotAllowed(func(w http.ResponseWriter, r *http.Request) {
		tinker.WriteError(w, &domain.Error{Code: domain.Unimplemented, Reason: request.ReasonMethod,
			Message: "the path " + wire.Quote(r.URL.Path) + " does not allow the method " + wire.Quote(r.Method)},
			request.RequestID(r))
	})
	operations := s.training.Operations()
	for i := range operations {
		offerTraining(s, routes, &operations[i])
	}
	return routes
}

// offerTraining registers the route of an operation of training services.
func offerTraining(s *Server, routes chi.Router, op *request.Operation) {
	routes.Method(op.Method, op.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r, span := startSpan(op, w, r)
		c := s.newCall(op, w, r)
		noteCall(w, c)
		defer endSpan(span, w, c)
		result, err := c.Answer()
		switch {
		case err != nil:
			s.core.LogFailure(r, err)
			tinker.WriteError(w, request.ErrorOf(err), c.ID)
		case result != nil:
			request.WriteResponse(w, result)
		}
	}))
}

// optionalKeyPrefix is a prefix that some clients of the training service require of API keys. A
// request may have it before an API key of anneal.
const optionalKeyPrefix = "tml-"

// trainingKey is middleware that copies the API key of a request from the header X-API-Key, in
// which clients of training services send it, to the header Authorization, without
// optionalKeyPrefix.
func trainingKey(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		key := strings.TrimSpace(r.Header.Get("X-API-Key"))
		if key == "" {
			scheme, given, found := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
			if found && strings.EqualFold(scheme, "Bearer") {
				key = strings.TrimSpace(given)
			}
		}
		if key != "" {
			r = r.Clone(r.Context())
			r.Header.Set("Authorization", "Bearer "+strings.TrimPrefix(key, optionalKeyPrefix))
		}
		next.ServeHTTP(w, r)
	})
}
