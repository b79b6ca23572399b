// Package audit stores audit records of what the log does not contain: refused and failed requests,
// logins, and reads of secrets by code that runs for an account. The records are in a bounded
// stream beside the log. No decision of the control plane depends on them.
package audit

import (
	"regexp"
	"strings"
	"time"

	"anneal/domain"
)

// Kinds of audit records.
const (
	RequestRefused = "REQUEST_REFUSED" // the HTTP response had a status from 400 to 498
	RequestFailed  = "REQUEST_FAILED"  // the HTTP response had a status of 500 or more, or an error cut the response off
	LoginAccepted  = "LOGIN_ACCEPTED"
	LoginRefused   = "LOGIN_REFUSED"
	SecretRead     = "SECRET_READ"     // code of an account, such as an evaluator, got the value of a secret
	RecordsDropped = "RECORDS_DROPPED" // the control plane dropped records; the field Repeated is their number
)

// Kinds lists all kinds of audit records.
var Kinds = []string{RequestRefused, RequestFailed, LoginAccepted, LoginRefused, SecretRead, RecordsDropped}

// A Record is an audit record: who did what, from which address, with which API key, and through
// which control plane. It never has a secret, a URL query, a request body or an error message,
// because error messages may quote the body.
type Record struct {
	// Sequence is the record's sequence number in the stream AUDIT.
	Sequence uint64 `json:"-"`

	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// Account is the account of the caller, or of the secret that was read. It is "" when the caller
	// was not authenticated; only the operator can read such a record.
	Account string `json:"account,omitempty"`
	// Actor is the API key, user, node or control plane that sent the request. It is users/NAME for a
	// user of the identity provider who may not use any account.
	Actor string `json:"actor,omitempty"`
	// APIKey is the name of the API key. When the key was refused, it is the name that the client
	// sent, which may belong to nobody.
	APIKey        string `json:"apiKey,omitempty"`
	ClientAddress string `json:"clientAddress,omitempty"` // IP address of the client's connection

	Method    string `json:"method,omitempty"`
	Operation string `json:"operation,omitempty"` // operation ID of the HTTP API
	Path      string `json:"path,omitempty"`      // path of the request's URL, without the query
	Status    int    `json:"status,omitempty"`    // HTTP status of the response
	Reason    string `json:"reason,omitempty"`    // reason in the error response, such as QUOTA_EXCEEDED

	RequestID    string `json:"requestId,omitempty"`
	TraceParent  string `json:"traceParent,omitempty"` // W3C trace context (header traceparent) of the request
	ControlPlane string `json:"controlPlane,omitempty"`

	Secret  string `json:"secret,omitempty"`  // name of the resource that contains the secret
	Reader  string `json:"reader,omitempty"`  // name of the resource whose code received the secret
	Purpose string `json:"purpose,omitempty"` // what the code uses the secret for
	Node    string `json:"node,omitempty"`    // ID of the node on which the code runs; "" when the control plane runs it

	// Repeated is the number of events for which this record stands; 0 means one event.
	Repeated int `json:"repeated,omitempty"`
}

// Maximum lengths of the fields in bytes, after control characters are escaped.
const (
	maxPath = 512
	maxText = 256
)

// keyText matches API keys and ID tokens, because a client may send its key in the wrong place,
// such as in the path.
var keyText = regexp.MustCompile(`(ank_)[A-Za-z0-9_-]*|(eyJ)[A-Za-z0-9_-]*\.[A-Za-z0-9_.-]*`)

// oneLine escapes line breaks and tabs, which domain.Printable keeps.
var oneLine = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// clean returns a client's text with control characters removed or escaped, API keys and ID
// tokens replaced by "ank_…" and "eyJ…", and at most limit bytes.
func clean(text string, limit int) string {
	if text == "" {
		return ""
	}
	if len(text) > 4*limit { // only the beginning is used, so do not clean all of a long text
		text = text[:4*limit]
	}
	text = oneLine.Replace(domain.Printable(keyText.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "${1}${2}…")))
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}

// bounded returns the record with cleaned fields of at most maxPath and maxText bytes.
func (r Record) bounded() Record {
	r.Path = clean(r.Path, maxPath)
	for _, field := range []*string{&r.Account, &r.Actor, &r.APIKey, &r.ClientAddress, &r.Method, &r.Operation,
		&r.Reason, &r.RequestID, &r.TraceParent, &r.ControlPlane, &r.Secret, &r.Reader, &r.Purpose, &r.Node} {
		*field = clean(*field, maxText)
	}
	return r
}

// events returns the number of events for which the record stands.
func (r Record) events() int { return max(1, r.Repeated) }
