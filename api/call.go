package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"anneal/api/connection"
	"anneal/api/request"
)

// newCall returns the call of an operation for a request.
func (s *Server) newCall(op *request.Operation, w http.ResponseWriter, r *http.Request) *request.Call {
	return &request.Call{Core: s.core, Conn: connection.Of(r), Operation: op, Writer: w, Request: r, Ctx: r.Context(),
		ID: request.RequestID(r), Time: s.core.Now().UTC(), Account: chi.URLParam(r, "account"),
		Direct: request.DirectOf(r)}
}
