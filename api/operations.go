package api

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"anneal/api/console"
	"anneal/api/request"
)

// operations returns the operations of all packages.
func (s *Server) operations() []request.Operation {
	return slices.Concat(
		s.systemOperations(), s.identityOperations(), s.document.Operations(), console.Operations(),
		s.rest.Operations(),
		s.events.Operations(),
		s.inference.Operations(),
		s.audio.Operations(),
	)
}

// offer registers the route of an operation on the router. A request is authorized before anything
// else in it is validated.
func (s *Server) offer(r chi.Router, op *request.Operation) {
	r.Method(op.Method, op.Route(), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// without this check, chi would take ID:verb for a resource ID
		if !op.Slashes && request.VerbOf(r.URL.Path) != request.VerbOf(op.Path) {
			s.noSuchMethod(w, r)
			return
		}
		r, span := startSpan(op, w, r)
		c := s.newCall(op, w, r)
		noteCall(w, c)
		defer endSpan(span, w, c)
		result, err := c.Answer()
		kept, isKept := result.(request.StoredResponse)
		switch {
		case err != nil:
			s.core.LogFailure(r, err)
			request.WriteError(w, request.ErrorOf(err), c.ID, op.HasInferenceErrors())
		case isKept:
			noteStored(w, kept)
			kept.Send(w)
		case result != nil:
			request.WriteResponse(w, result)
		}
	}))
}
