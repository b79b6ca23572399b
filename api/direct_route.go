package api

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
)

// directRoutes serves requests that are sent to the host name of a deployment or trainer job (its
// direct route) instead of the server's host name: inference requests, or those to a training
// service.
type directRoutes struct {
	*routing.DirectRoutes
	routes   chi.Router // of deployments
	training chi.Router // of trainer jobs
}

func newDirectRoutes(s *Server, found *routing.DirectRoutes) *directRoutes {
	d := &directRoutes{DirectRoutes: found, routes: chi.NewRouter()}
	d.routes.Use(s.identify, s.observe, s.recover, s.cors.allow, d.find, s.options, middleware.GetHead)
	d.routes.NotFound(noSuchDirectPath)
	d.routes.MethodNotAllowed(s.noSuchMethod)
	for _, op := range s.inference.Operations() {
		s.offer(d.routes, &op)
	}
	d.training = s.trainingRoutes(d.find)
	return d
}

func (d *directRoutes) labelOf(r *http.Request) (string, bool) {
	if d == nil {
		return "", false
	}
	return d.LabelOf(r)
}

func (d *directRoutes) serve(label string, w http.ResponseWriter, r *http.Request) {
	routes := d.routes
	if name, ok := d.Find(label); ok && name.Collection() == domain.TrainerJobs.Collection {
		routes = d.training
	}
	routes.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.DirectLabelKey{}, label)))
}

// find is middleware that finds the deployment or trainer job with the request's host name, before
// the rest of the request is read. It responds with 404 if none has that host name.
func (d *directRoutes) find(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		label, _ := r.Context().Value(request.DirectLabelKey{}).(string)
		name, ok := d.Find(label)
		if !ok {
			request.WriteError(w, request.ErrorOf(request.NotFoundReason("DIRECT_ROUTE_NOT_FOUND",
				"no deployment and no trainer job has the host name %s: their host names are in directRouteHandle",
				wire.Quote(r.Host))),
				request.RequestID(r), true)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.DirectKey{}, name)))
	})
}

func noSuchDirectPath(w http.ResponseWriter, r *http.Request) {
	request.WriteError(w, request.ErrorOf(request.NotFoundReason("NO_SUCH_PATH",
		"the host name of a deployment serves only completions, chat completions, responses, embeddings and models, such "+
			"as /v1/completions: send other requests to the server's host name")), request.RequestID(r), true)
}
