package api

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"anneal/api/request"
)

// A call is a request together with the server that handles it.
type call struct {
	*request.Call
	server *Server
}

// A handler responds to a call: with a value for JSON, or with nil when it has written the response.
type handler func(c *call) (any, error)

// handle binds a handler to the server.
func (s *Server) handle(h handler) request.Handler {
	return func(c *request.Call) (any, error) { return h(&call{c, s}) }
}

// newCall is a request on its way to an operation.
func (s *Server) newCall(op *request.Operation, w http.ResponseWriter, r *http.Request) *request.Call {
	return &request.Call{Core: s.core, Conn: exchangeOf(r), Operation: op, Writer: w, Request: r, Ctx: r.Context(),
		ID: request.RequestID(r), Time: s.Now().UTC(), Account: chi.URLParam(r, "account"), Direct: request.DirectOf(r)}
}
