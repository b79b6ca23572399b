package metering

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog"
)

// Limits of the metadata of a request. Those of entries, keys and values are the limits of OpenAI's
// API. MaxMetadataSize allows ASCII metadata that reach all three limits. Metadata in other scripts
// have several bytes per character and can exceed it earlier, so that records stay small.
const (
	MaxMetadata      = 16       // entries
	MaxMetadataKey   = 64       // characters
	MaxMetadataValue = 512      // characters of a text or digits of a number
	MaxMetadataSize  = 16 << 10 // bytes of the whole metadata, as JSON: see MetadataSize
)

// MetadataSize returns the number of bytes that metadata have in a usage record.
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
	Request string       `json:"-"` // ID of the request, which its response contains
	Trace   domain.Trace `json:"-"`
	// ID identifies the record; an empty one is replaced by a new ID. A record with the ID of another
	// one is the same usage, metered again after a crash.
	ID string `json:"-"`
	// ControlPlane is the ID of the control plane that metered the request. It numbers its records from
	// 1 without gaps, so that readers see whether one is missing: a Number that the stream lacks is a
	// record that was lost, and that the log of the control plane mentions.
	ControlPlane string `json:"-"`
	Number       uint64 `json:"number,omitempty"`

	Kind       string      `json:"kind"`    // one of the kinds of usage, such as Completion
	Account    string      `json:"account"` // account of the API key
	Key        domain.Name `json:"apiKey"`
	Deployment domain.Name `json:"deployment"`
	Model      string      `json:"model"`    // as named in the request
	Complete   bool        `json:"complete"` // false when the response was cut off; usage is counted up to that point

	User     string         `json:"user,omitempty"`     // end user, as named in the request
	Metadata map[string]any `json:"metadata,omitempty"` // metadata of the request: texts, numbers and booleans

	PromptTokens       int     `json:"promptTokens,omitempty"`
	CachedPromptTokens int     `json:"cachedPromptTokens,omitempty"` // included in PromptTokens
	CompletionTokens   int     `json:"completionTokens,omitempty"`
	AudioSeconds       float64 `json:"audioSeconds,omitempty"`
}

// Kinds of usage.
const (
	Completion    = "completion"
	Chat          = "chat"
	Embedding     = "embedding"
	Response      = "response"
	Transcription = "transcription"
	Translation   = "translation"
)

// identified returns the record with an ID. had reports whether it had one, so that an earlier record
// may have the same ID.
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

// message returns the record as a CloudEvent about its deployment, on the usage subject of its
// account and kind.
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
		return nil, errors.New("eventlog: a usage record needs an account and a kind")
	}
	message.Header[jetstream.MsgIDHeader] = []string{u.ID}
	return message, nil
}
