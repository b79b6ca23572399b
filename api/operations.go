package api

import (
	"net/http"
	"slices"

	"github.com/go-chi/chi/v5"

	"anneal/api/request"
)

// operations is the whole table.
func operations(s *Server) []request.Operation {
	return slices.Concat(
		systemOperations(s), docsOperations(s),
		accountOperations(s),
		apiKeys.operations(s),
		secrets.operations(s),
		models.operations(s), modelOperations(s),
		datasets.operations(s), datasetOperations(s),
		evaluators.operations(s), evaluatorOperations(s),
		supervisedJobs.operations(s), jobOperations(s, supervisedJobs), []request.Operation{estimateOperation(s)},
		dpoJobs.operations(s), jobOperations(s, dpoJobs),
		reinforcementJobs.operations(s), jobOperations(s, reinforcementJobs),
		trainerJobs.operations(s), jobOperations(s, trainerJobs), []request.Operation{trainStepOperation(s)},
		deploymentShapes.operations(s), shapeVersionOperations(s),
		deployments.operations(s), deploymentOperations(s),
		deployedModels.operations(s),
		nodes.operations(s), nodeOperations(s),
		quotaOperations(s),
		eventOperations(s),
		inferenceOperations(s),
		transcriptionOperations(s),
	)
}

// offer routes an operation. Who may call it is decided before anything else
// of the request is looked at.
func (s *Server) offer(r chi.Router, op *request.Operation) {
	r.Method(op.Method, op.Path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if request.VerbOf(r.URL.Path) != request.VerbOf(op.Path) { // the router takes resource:verb for a resource of that name
			s.noSuchMethod(w, r)
			return
		}
		c := s.newCall(op, w, r)
		result, err := c.Answer()
		kept, isKept := result.(request.StoredResponse)
		switch {
		case err != nil:
			s.core.LogFailure(r, err)
			request.WriteError(w, request.ErrorOf(err), c.ID, op.IsInference())
		case isKept:
			kept.Send(w)
		case result != nil:
			request.WriteResponse(w, result)
		}
	}))
}
