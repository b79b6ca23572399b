// Package audit records what the log does not: refused and failed requests, logins, and reads of
// secrets by code. The records are in a bounded stream beside the log. No decision depends on them.
package audit

import (
	"regexp"
	"strings"
	"time"

	"anneal/domain"
)

// Kinds of records.
const (
	RequestRefused = "REQUEST_REFUSED" // the response had a status from 400 to 498
	RequestFailed  = "REQUEST_FAILED"  // the response had a status from 500 on, or was cut off by a failure
	LoginAccepted  = "LOGIN_ACCEPTED"
	LoginRefused   = "LOGIN_REFUSED"
	SecretRead     = "SECRET_READ"     // code got the value of a secret
	RecordsDropped = "RECORDS_DROPPED" // the control plane could not store Repeated records
)

// Kinds lists all kinds of records.
var Kinds = []string{RequestRefused, RequestFailed, LoginAccepted, LoginRefused, SecretRead, RecordsDropped}

// A Record states who did what, from where, by which key, and through which control plane. It never
// has a secret, a query, a body or the message of an error, which may repeat parts of a body.
type Record struct {
	// Sequence is the position of the record in the stream. Later records have higher ones.
	Sequence uint64 `json:"-"`

	ID   string    `json:"id"`
	Time time.Time `json:"time"`
	Kind string    `json:"kind"`
	// Account is the account that the record belongs to: that of the caller, or of the secret. It is
	// "" when the caller was not authenticated: only the operator sees such a record.
	Account string `json:"account,omitempty"`
	// Actor is the API key, the node or the control plane that acted.
	Actor string `json:"actor,omitempty"`
	// APIKey is the name of the API key. When the key was refused, it is the name that the key
	// claims, which nobody has verified.
	APIKey        string `json:"apiKey,omitempty"`
	ClientAddress string `json:"clientAddress,omitempty"` // IP address of the other end of the connection

	Method    string `json:"method,omitempty"`
	Operation string `json:"operation,omitempty"` // ID of the operation
	Path      string `json:"path,omitempty"`      // without the query
	Status    int    `json:"status,omitempty"`    // HTTP status
	Reason    string `json:"reason,omitempty"`    // reason of the error, such as QUOTA_EXCEEDED

	RequestID    string `json:"requestId,omitempty"`
	TraceParent  string `json:"traceParent,omitempty"` // W3C trace context of the request
	ControlPlane string `json:"controlPlane,omitempty"`

	Secret  string `json:"secret,omitempty"`  // resource that has the sealed value
	Reader  string `json:"reader,omitempty"`  // resource whose code got the value
	Purpose string `json:"purpose,omitempty"` // what the code does with the value
	Node    string `json:"node,omitempty"`    // node that got the value; "" for the control plane

	// Repeated is the number of events that the record represents; 0 for one.
	Repeated int `json:"repeated,omitempty"`
}

// Limits of the fields in bytes, after control characters are escaped.
const (
	maxPath = 512
	maxText = 256
)

// keyText matches API keys: a client may send one in the wrong place.
var keyText = regexp.MustCompile(`ank_[A-Za-z0-9_-]*`)

// oneLine escapes the control characters that domain.Printable keeps.
var oneLine = strings.NewReplacer("\n", `\n`, "\t", `\t`)

// clean returns text of a client without control characters and API keys, and not longer than limit.
func clean(text string, limit int) string {
	if text == "" {
		return ""
	}
	if len(text) > 4*limit { // the rest would be cut off
		text = text[:4*limit]
	}
	text = oneLine.Replace(domain.Printable(keyText.ReplaceAllString(strings.ToValidUTF8(text, "\uFFFD"), "ank_…")))
	if len(text) <= limit {
		return text
	}
	const mark = "…"
	return strings.ToValidUTF8(text[:limit-len(mark)], "") + mark
}

// bounded returns the record with bounded, printable fields.
func (r Record) bounded() Record {
	r.Path = clean(r.Path, maxPath)
	for _, field := range []*string{&r.Account, &r.Actor, &r.APIKey, &r.ClientAddress, &r.Method, &r.Operation,
		&r.Reason, &r.RequestID, &r.TraceParent, &r.ControlPlane, &r.Secret, &r.Reader, &r.Purpose, &r.Node} {
		*field = clean(*field, maxText)
	}
	return r
}

// events returns the number of events that the record represents.
func (r Record) events() int { return max(1, r.Repeated) }
