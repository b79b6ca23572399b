package eventlog

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
)

// Headers and fixed values of an event's NATS message. It follows the NATS protocol binding of
// CloudEvents 1.0 in binary mode: attributes are headers, and the event's data is the body.
const (
	headerSpec         = "ce-specversion"
	HeaderID           = "ce-id"
	headerType         = "ce-type"
	headerSource       = "ce-source"
	HeaderSubject      = "ce-subject"
	headerTime         = "ce-time"
	headerActor        = "ce-actor"
	headerCommand      = "ce-command"
	headerCause        = "ce-cause"
	headerCorrelation  = "ce-correlation"
	HeaderControlPlane = "ce-controlplane"
	headerAddress      = "ce-clientaddress"
	headerAttempt      = "ce-attempt"
	headerState        = "ce-state"
	headerTraceParent  = "ce-traceparent"
	headerTraceState   = "ce-tracestate"
	headerDataSchema   = "ce-dataschema"
	headerContent      = "content-type"

	specVersion = "1.0"
	source      = "anneal"
	contentJSON = "application/json"
)

const maxAttribute = 1 << 10 // maximum length of one attribute in bytes

// check returns an error for an event whose resource name is invalid, or which exceeds the limits
// of the envelope.
func (w Write) check() error {
	if subject := w.Name.Subject(); domain.NameOf(subject) != w.Name || !ValidSubject(subject) {
		return domain.Errorf(domain.Internal,
			"invalid resource name %q: must be accounts/{account} or accounts/{account}/{collection}/{id}", w.Name)
	}
	if w.ID == "" || w.Type == "" {
		return domain.Errorf(domain.Internal, "the event of %s has no ID or no type", w.Name)
	}
	for _, value := range [...]string{w.ID, w.Type, w.Actor, w.Command, w.Cause, w.Correlation, w.State,
		w.ControlPlane, w.ClientAddress, w.Trace.Parent, w.Trace.State} {
		if len(value) > maxAttribute {
			return domain.Errorf(domain.InvalidArgument,
				"an attribute of the event of %s has %d bytes: at most %d are allowed", w.Name, len(value), maxAttribute)
		}
	}
	return nil
}

// ValidSubject reports whether text is a NATS subject without wildcards, spaces and empty tokens.
func ValidSubject(subject string) bool {
	return !strings.ContainsAny(subject, "*> \t\r\n\x00") && !strings.Contains(subject, "..") &&
		!strings.HasSuffix(subject, ".")
}

// Encode returns the NATS message of an event. The caller adds the headers for the check of the
// subject's last position.
func Encode(e Event) *nats.Msg {
	header := make(nats.Header, 16)
	header[headerSpec] = []string{specVersion}
	header[headerSource] = []string{source}
	header[headerContent] = []string{contentJSON}
	header[HeaderID] = []string{EscapeHeader(e.ID)}
	header[headerType] = []string{EscapeHeader(e.Type)}
	header[HeaderSubject] = []string{EscapeHeader(string(e.Name))}
	header[headerTime] = []string{e.Time.UTC().Format(time.RFC3339Nano)}
	set := func(key, value string) {
		if value != "" {
			header[key] = []string{EscapeHeader(value)}
		}
	}
	set(headerActor, e.Actor)
	set(headerCommand, e.Command)
	set(headerCause, e.Cause)
	set(headerCorrelation, e.Correlation)
	set(HeaderControlPlane, e.ControlPlane)
	set(headerAddress, e.ClientAddress)
	set(headerAttempt, attemptOf(e.Data))
	set(headerState, e.State)
	set(headerTraceParent, e.Trace.Parent)
	set(headerTraceState, e.Trace.State)
	if schema := dataSchemas[e.Type]; schema != nil {
		header[headerDataSchema] = schema
	}
	return &nats.Msg{Subject: e.Name.Subject(), Header: header, Data: e.Data}
}

// Decode returns the event in a NATS message. position is the message's sequence in the stream. The
// subject determines the resource of the event.
func Decode(subject string, header nats.Header, data []byte, position uint64) (Event, error) {
	name := domain.NameOf(subject)
	if name == "" {
		return Event{}, fmt.Errorf("decode the event at position %d: the subject %q does not name a "+
			"resource", position, subject)
	}
	at, err := time.Parse(time.RFC3339Nano, HeaderValue(header, headerTime))
	if err != nil {
		return Event{}, fmt.Errorf("decode the event at position %d of %s: attribute %s: "+
			"%w", position, subject, headerTime, err)
	}
	return Event{
		Record: domain.Record{Type: HeaderValue(header, headerType), Data: data,
			State: HeaderValue(header, headerState)},
		Position:     position,
		ID:           HeaderValue(header, HeaderID),
		Name:         name,
		Time:         at,
		Actor:        HeaderValue(header, headerActor),
		Command:      HeaderValue(header, headerCommand),
		Cause:        HeaderValue(header, headerCause),
		Correlation:  HeaderValue(header, headerCorrelation),
		ControlPlane: HeaderValue(header, HeaderControlPlane), ClientAddress: HeaderValue(header, headerAddress),
		Trace: domain.Trace{Parent: HeaderValue(header, headerTraceParent),
			State: HeaderValue(header, headerTraceState)},
	}, nil
}

func HeaderValue(header nats.Header, key string) string {
	values := header[key]
	if len(values) == 0 {
		return ""
	}
	if strings.IndexByte(values[0], '%') < 0 {
		return values[0]
	}
	if plain, err := url.PathUnescape(values[0]); err == nil {
		return plain
	}
	return values[0]
}

// EscapeHeader percent-encodes characters outside U+0021 to U+007E, quotation marks and percent
// signs, as the CloudEvents binding requires.
func EscapeHeader(value string) string {
	unsafe := func(c byte) bool { return c < 0x21 || c > 0x7e || c == '"' || c == '%' }
	clean := true
	for i := 0; i < len(value) && clean; i++ {
		clean = !unsafe(value[i])
	}
	if clean {
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if unsafe(value[i]) {
			fmt.Fprintf(&b, "%%%02X", value[i])
		} else {
			b.WriteByte(value[i])
		}
	}
	return b.String()
}

// attemptOf returns the field "attempt" of an event's JSON data as text; "" when there is none.
func attemptOf(data []byte) string {
	if !bytes.Contains(data, []byte(`"attempt"`)) {
		return ""
	}
	var body struct {
		Attempt any `json:"attempt"`
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if decoder.Decode(&body) != nil {
		return ""
	}
	switch attempt := body.Attempt.(type) {
	case string:
		return attempt[:min(len(attempt), maxAttribute)]
	case json.Number:
		return attempt.String()
	}
	return ""
}

// structured is a CloudEvent in JSON (structured mode). The position is a decimal string, as are
// all 64-bit integers in the JSON of the API, because integers of CloudEvents have 32 bits.
type structured struct {
	SpecVersion string `json:"specversion"`
	ID          string `json:"id"`
	Type        string `json:"type"`
	Source      string `json:"source"`
	Subject     string `json:"subject"`
	Time        string `json:"time"`
	ContentType string `json:"datacontenttype"`
	DataSchema  string `json:"dataschema,omitempty"`
	Position    string `json:"position"`
	Actor       string `json:"actor,omitempty"`
	Command     string `json:"command,omitempty"`
	Cause       string `json:"cause,omitempty"`
	Correlation string `json:"correlation,omitempty"`
	// no capital letter, because names of CloudEvents attributes have none
	ControlPlane string `json:"controlplane,omitempty"`
	Address      string `json:"clientaddress,omitempty"`
	Attempt      string `json:"attempt,omitempty"`
	State        string `json:"state,omitempty"` // the resource's lifecycle state after the event
	domain.Trace
	Data json.RawMessage `json:"data,omitempty"`
}

// Structured returns a value that encoding/json marshals as the event in CloudEvents 1.0
// structured mode, with the extension attributes position, actor, command, cause, correlation,
// controlplane, clientaddress, attempt and state, and the distributed tracing extension.
func Structured(e Event) any {
	return structured{
		SpecVersion: specVersion, ID: e.ID, Type: e.Type, Source: source, Subject: string(e.Name),
		Time: e.Time.UTC().Format(time.RFC3339Nano), ContentType: contentJSON,
		Position: strconv.FormatUint(e.Position, 10),
		Actor:    e.Actor, Command: e.Command, Cause: e.Cause, Correlation: e.Correlation,
		ControlPlane: e.ControlPlane, Address: e.ClientAddress,
		Attempt: attemptOf(e.Data), State: e.State, Trace: e.Trace, Data: e.Data,
		DataSchema: DataSchema(e.Type),
	}
}
