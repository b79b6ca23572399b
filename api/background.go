package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"runtime/debug"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/domain"
	"anneal/engines"
)

// A BackgroundRequest is an inference request of a batch, for which no client waits.
type BackgroundRequest struct {
	Key domain.Name // API key on whose behalf the request is sent; it may be deleted by now
	ID  string
	// Trace is the trace context of the request that created the batch.
	Trace domain.Trace
	Path  string // path of an inference operation, such as /v1/chat/completions
	Body  []byte
}

// A BackgroundResponse is the response to a BackgroundRequest, as a client would receive it.
type BackgroundResponse struct {
	Status int
	Body   []byte
	Code   domain.Code // code of the error; domain.OK if the request succeeded
	// Waits reports that the request failed because no capacity was free or its account is
	// suspended, so that the batch can send it again later.
	Waits bool
}

// ServeInBackground executes a request as if a client had sent it, but without credentials. The
// request counts against the quota requests-per-minute, and its usage is recorded.
func (s *Server) ServeInBackground(ctx context.Context, q BackgroundRequest) BackgroundResponse {
	c := s.backgroundCall(ctx, q)
	result, err := s.answerInBackground(c)
	if err == nil {
		return BackgroundResponse{Status: http.StatusOK, Body: encoded(result)}
	}
	f := request.ErrorOf(err)
	status, body := request.InferenceBody(f, q.ID)
	waits := status == http.StatusPreconditionFailed || f.Code == domain.ResourceExhausted
	switch f.Reason {
	case request.ReasonScalingUp, request.ReasonNoPlace, request.ReasonStopping:
		waits = true
	}
	return BackgroundResponse{Status: status, Body: encoded(body), Code: f.Code, Waits: waits}
}

// ResolveInBackground returns the deployment that serves a batch's requests for the model. It
// returns an error if no deployment serves the model, or if the model transcribes speech.
func (s *Server) ResolveInBackground(ctx context.Context, q BackgroundRequest, model string) (domain.Name, error) {
	target, err := routing.Resolve(s.backgroundCall(ctx, q), model)
	if err == nil {
		err = target.RequireText()
	}
	return target.Name, err
}

// LoadOf returns the number of requests that a deployment can serve concurrently. busy reports
// whether requests of clients wait for the deployment: see routing.Load.
func (s *Server) LoadOf(deployment domain.Name) (slots int, busy bool) {
	return routing.Load(s.core, deployment)
}

func (s *Server) backgroundCall(ctx context.Context, q BackgroundRequest) *request.Call {
	var op *request.Operation
	for i := range s.table {
		if s.table[i].Method == http.MethodPost && s.table[i].Path == q.Path && s.table[i].IsInference() {
			op = &s.table[i]
		}
	}
	if op == nil {
		panic("api: no inference operation has the path " + q.Path)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, q.Path, nil)
	if err != nil {
		panic(err) // impossible: q.Path is the path of an operation, a valid URL
	}
	return &request.Call{Core: s.core, Conn: &storedBody{q.Body}, Operation: op, Writer: headers{http.Header{}},
		Request: r, Ctx: engines.WithTrace(ctx, q.Trace), ID: q.ID, Trace: q.Trace, Time: s.core.Now().UTC(),
		Account: q.Key.Account(), Background: true,
		Principal: request.Principal{Key: q.Key, Account: q.Key.Account(), Role: domain.RoleInference}}
}

// answerInBackground calls request.AnswerInBackground. When that panics, it logs the panic and
// returns an error with the code Internal.
func (s *Server) answerInBackground(c *request.Call) (result any, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			s.Logger.Error("panic", "request", c.ID, "path", c.Operation.Path, "cause", fmt.Sprint(cause), "stack",
				string(debug.Stack()))
			err = domain.Errorf(domain.Internal, "internal error: report the request ID to the server's operator: %s", c.ID)
		}
	}()
	return request.AnswerInBackground(c)
}

// encoded returns the JSON of a response without line breaks, as a row of a batch's output.
func encoded(value any) []byte {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		panic(err) // only a bug in a wire type causes this error
	}
	return bytes.TrimSpace(data.Bytes())
}

// storedBody is the request.Connection of a BackgroundRequest, whose body is in memory.
type storedBody struct{ body []byte }

// ReadBody implements request.Connection.
func (b *storedBody) ReadBody(_ *http.Request, limit int64) ([]byte, error) {
	if int64(len(b.body)) > limit {
		return nil, request.BodyTooLarge(limit)
	}
	return b.body, nil
}

// ReleaseBody implements request.Connection.
func (b *storedBody) ReleaseBody() { b.body = nil }

// Identify implements request.Connection. It does nothing, because there is no HTTP connection.
func (*storedBody) Identify(string) {}

// headers is an http.ResponseWriter that collects headers and discards the body and the status.
type headers struct{ header http.Header }

// Header implements http.ResponseWriter.
func (h headers) Header() http.Header { return h.header }

// Write implements http.ResponseWriter.
func (headers) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (headers) WriteHeader(int) {}
