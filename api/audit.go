package api

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"

	"anneal/api/oidc"
	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/audit"
)

// statusClientClosed is the status that the log and metrics show for a request whose client
// disconnected before the response. The audit stream does not count it as a refused request.
const statusClientClosed = 499

// noteCall passes the call to the recorder w of its response, for the audit record.
func noteCall(w http.ResponseWriter, c *request.Call) {
	if r, ok := w.(*recorder); ok {
		r.call = c
	}
}

// ObserveError implements request.ErrorObserver.
func (r *recorder) ObserveError(f *domain.Error) {
	if r.reason = f.Reason; r.reason == "" {
		r.reason = f.Code.String()
	}
}

// noteStored passes the error reason of a response from the idempotency store to the recorder w of
// the response.
func noteStored(w http.ResponseWriter, stored request.StoredResponse) {
	if r, ok := w.(*recorder); ok && stored.Status >= http.StatusBadRequest {
		r.reason = reasonIn(stored.Body)
	}
}

// reasonIn returns the reason in the JSON body of an error response; "" for a body without a
// reason.
func reasonIn(body []byte) string {
	var management struct {
		Details []struct{ Reason string }
	}
	var inference struct{ Error struct{ Code string } }
	if json.Unmarshal(body, &management) == nil && len(management.Details) > 0 {
		return management.Details[0].Reason
	}
	_ = json.Unmarshal(body, &inference)
	return inference.Error.Code
}

// record stores an audit record of a request that was refused (4xx), has failed (5xx or cut off),
// or is a login. It stores nothing for other requests.
func (s *Server) record(response *recorder, r *http.Request) {
	if s.Audit == nil {
		return
	}
	one := audit.Record{Method: r.Method, Path: r.URL.Path, Status: response.status, Reason: response.reason,
		RequestID: request.RequestID(r), TraceParent: request.TraceOf(r).Parent, ClientAddress: request.ClientAddress(r)}
	switch {
	case response.cut || response.status >= http.StatusInternalServerError:
		one.Kind = audit.RequestFailed
	case response.status >= http.StatusBadRequest && response.status != statusClientClosed:
		one.Kind = audit.RequestRefused
	}
	claimed, bare := domain.Name(""), false
	if c := response.call; c != nil {
		one.Operation, one.Account, one.Actor = c.Operation.ID, c.Principal.Account, callerIn(c)
		bare = c.Operation.BareKey
	}
	if text, err := request.Credential(r, bare); err == nil {
		claimed, _ = request.KeyName(text)
	}
	one.APIKey = one.Actor
	if one.Actor == "" {
		one.APIKey = string(claimed) // the key was not verified, so the record has no account
	} else if one.Account == "" || domain.Name(one.Actor).Collection() != domain.APIKeys.Collection {
		one.APIKey = "" // the key of a deployment's direct route is no API key
	}
	if isLogin(response.call, claimed) {
		one.Kind = loginKind(one)
	} else if one.Reason == oidc.ReasonRejected {
		one.Kind = audit.LoginRefused
	}
	if one.Kind != "" {
		s.Audit.Record(one)
	}
}

// callerIn returns the name of the API key or user of a call: users/NAME for a user without an account,
// "" if the credential was not verified.
func callerIn(c *request.Call) string {
	return cmp.Or(string(c.Principal.Key), request.RefusedUser(c))
}

// isLogin reports whether a request reads the caller or the API key that it was sent with, as the
// console, `anneal login` and `anneal whoami` do.
func isLogin(c *request.Call, key domain.Name) bool {
	if c == nil || c.Operation.ID == "getCaller" {
		return c != nil
	}
	return key != "" && c.Operation.ID == "getApiKey" &&
		key == domain.NewName(c.Account, domain.APIKeys.Collection, c.PathValue("id"))
}

// loginKind returns the kind of the audit record of a login: LoginAccepted if the API key is valid,
// even if its role may not read API keys (reason ROLE), and LoginRefused if it is not.
func loginKind(r audit.Record) string {
	switch {
	case r.Status == http.StatusOK, r.Status == http.StatusForbidden && r.Reason == "ROLE":
		return audit.LoginAccepted
	case r.Status == http.StatusUnauthorized, strings.HasPrefix(r.Reason, "OIDC_"):
		return audit.LoginRefused
	}
	return r.Kind
}
