package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"anneal/api/connection"
	"anneal/api/request"
	"anneal/engines"
	"anneal/tracing"
)

// newCall returns the Call of a request to an operation.
func (s *Server) newCall(op *request.Operation, w http.ResponseWriter, r *http.Request) *request.Call {
	trace := tracing.Of(r.Context(), request.TraceOf(r))
	return &request.Call{Core: s.core, Conn: connection.Of(r), Operation: op, Writer: w, Request: r,
		Ctx: engines.WithTrace(r.Context(), trace), ID: request.RequestID(r), Trace: trace,
		Time: s.core.Now().UTC(), Account: chi.URLParam(r, "account"),
		Direct: request.DirectOf(r)}
}
