package metering

import (
	"bytes"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog"
)

// Limits of a request's metadata. Number of entries, length of keys and length of values are
// limited as in OpenAI's API. MaxMetadataSize is the size of ASCII metadata that reach all three
// limits. Metadata with characters of several bytes can exceed MaxMetadataSize although they are
// within the other limits.
const (
	MaxMetadata      = 16       // maximum number of entries in the metadata of one request
	MaxMetadataKey   = 64       // maximum length of a key in characters
	MaxMetadataValue = 512      // maximum length of a text value in characters, or of a number in digits
	MaxMetadataSize  = 16 << 10 // maximum size of all metadata of one request in bytes: see MetadataSize
)

// MetadataSize returns the number of bytes that metadata take in a usage record.
func MetadataSize(metadata map[string]any) (int, error) {
	data, err := encode(metadata)
	return len(data), err
}

// encode returns value as JSON. Unlike json.Marshal, it does not escape the characters <, > and &.
func encode(value any) ([]byte, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return bytes.TrimSuffix(out.Bytes(), []byte("\n")), err
}

// A Record is the usage of one request to a model.
type Record struct {
	Time    time.Time    `json:"-"`
	Request string       `json:"-"` // ID of the request; the response has the same ID
	Trace   domain.Trace `json:"-"`
	// ID identifies the record. An empty ID is replaced by a new one. Two records with the same ID are
	// the same usage, metered twice because of a crash.
	ID string `json:"-"`
	// ControlPlane is the ID of the control plane that metered the request. It numbers its records
	// from 1 without gaps. If the stream lacks a Number, that record was lost, and the log of the
	// control plane says so.
	ControlPlane string `json:"-"`
	Number       uint64 `json:"number,omitempty"`

	Kind       string      `json:"kind"`    // type of the request, such as completion or chat
	Account    string      `json:"account"` // account of the API key that made the request
	Key        domain.Name `json:"apiKey"`
	Deployment domain.Name `json:"deployment"`
	Model      string      `json:"model"`    // name of the model, as the request names it
	Complete   bool        `json:"complete"` // false when the response was cut off; the usage up to that point is counted

	User     string         `json:"user,omitempty"`     // end user that the request's field user names; "" without one
	Metadata map[string]any `json:"metadata,omitempty"` // the request's metadata: texts, numbers and booleans

	PromptTokens int `json:"promptTokens,omitempty"`
	// part of PromptTokens that came from the prefix cache
	CachedPromptTokens int     `json:"cachedPromptTokens,omitempty"`
	CompletionTokens   int     `json:"completionTokens,omitempty"`
	AudioSeconds       float64 `json:"audioSeconds,omitempty"`
}

// Values of Record.Kind, one for each type of request.
const (
	Completion    = "completion"
	Chat          = "chat"
	Embedding     = "embedding"
	Response      = "response"
	Transcription = "transcription"
	Translation   = "translation"
	Shadow        = "shadow" // copy of a request for a release: see domain.ReleaseShadow
)

// identified returns the record with an ID, which it generates if the record has none. had reports
// whether the record had an ID, and so may have been metered before.
func (u Record) identified() (_ Record, had bool, err error) {
	if u.ID != "" {
		return u, true, nil
	}
	id, err := uuid.NewV7()
	if err != nil {
		return u, false, fmt.Errorf("eventlog: %w", err)
	}
	u.ID = id.String()
	return u, false, nil
}

// message returns the NATS message of the record: a CloudEvent about the deployment, on the usage
// subject of its account and kind.
func (u Record) message() (*nats.Msg, error) {
	data, err := encode(u)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	message := eventlog.Encode(eventlog.Event{Record: domain.Record{Type: eventlog.UsageRecorded, Data: data},
		ID: u.ID, Name: u.Deployment, Time: u.Time, Actor: string(u.Key), Correlation: u.Request, Trace: u.Trace,
		ControlPlane: u.ControlPlane})
	message.Subject = "usage." + u.Account + "." + u.Kind
	if !eventlog.ValidSubject(message.Subject) {
		return nil, fmt.Errorf("usage record of account %q and kind %q: both must be set and valid in a NATS subject",
			u.Account, u.Kind)
	}
	message.Header[jetstream.MsgIDHeader] = []string{u.ID}
	return message, nil
}
