package metering

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
)

// Stream holds usage records of requests to models. It is separate from the log: no decision
// depends on it, and old records are deleted.
const Stream = "USAGE"

const (
	usageType = "usage.recorded.v1"
	usageKept = 35 * 24 * time.Hour // a month, and a few days to read its records

	usageRecords = 2_000_000
	// usageBytes is the maximum size of the stream, and of each of its mirrors: enough for
	// usageRecords records of 1 KiB. Most have about 800 bytes, with their headers.
	usageBytes = 2 << 30
	// maxUsage is the maximum size of one record, in bytes. The fields other than the metadata have
	// at most 10 KiB, because user, model and the names of resources have at most 512 characters each.
	maxUsage = MaxMetadataSize + 10<<10
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
	Time       time.Time   `json:"-"`
	Request    string      `json:"-"`       // ID of the request, which its response contains
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

// EnsureStream creates or updates the stream of usage records. The NATS server reserves the
// stream's maximum size. On a server that does not have that much space, the stream has no limit in
// bytes, because the control plane must start on a nearly full disk. The embedded server can always
// reserve the space: see package natsserver.
func EnsureStream(ctx context.Context, js jetstream.JetStream, replicas int) error {
	config := bounded(jetstream.StreamConfig{
		Name:        Stream,
		Description: "Usage of requests to models: one CloudEvent per request, kept for 35 days",
		Subjects:    []string{"usage.>"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
	})
	return withinSpace(config, func(config jetstream.StreamConfig) error {
		return eventlog.EnsureStream(ctx, js, config, replicas)
	})
}

func bounded(config jetstream.StreamConfig) jetstream.StreamConfig {
	config.MaxMsgSize, config.MaxAge, config.MaxMsgs, config.MaxBytes, config.Discard = maxUsage, usageKept,
		usageRecords, usageBytes, jetstream.DiscardOld
	return config
}

// noStorage is the code of the JetStream error "insufficient storage resources available".
const noStorage jetstream.ErrorCode = 10047

// withinSpace calls ensure with config, and again without the limit in bytes when the NATS server
// cannot reserve as much space.
func withinSpace(config jetstream.StreamConfig, ensure func(jetstream.StreamConfig) error) error {
	err := ensure(config)
	var refused *jetstream.APIError
	if !errors.As(err, &refused) || refused.ErrorCode != noStorage {
		return err
	}
	slog.Warn("the NATS server cannot reserve the maximum size of the stream, so the stream is limited by its number of "+
		"messages only: raise max_file_store", "stream", config.Name, "bytes", config.MaxBytes, "messages", config.MaxMsgs)
	config.MaxBytes = -1
	return ensure(config)
}

// EnsureMirror creates the mirror of the usage stream for readers. The mirror is in a separate NATS
// account, because the consumer of a reader can deliver messages to any subject of the reader's
// account. When a power failure removed the newest records of the stream, the mirror has records
// that the stream lacks; EnsureMirror then deletes the mirror and creates it again.
func EnsureMirror(ctx context.Context, readers, control jetstream.JetStream, replicas int) error {
	return eventlog.Retry(ctx, func(ctx context.Context) error {
		there, err := readers.Stream(ctx, Stream)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("eventlog: look up the readers' usage mirror: %w", err)
		}
		kept, failed := control.Stream(ctx, Stream)
		if failed != nil {
			return fmt.Errorf("look up stream %s: %w", Stream, failed)
		}
		if err == nil && there.CachedInfo().State.LastSeq > kept.CachedInfo().State.LastSeq {
			if err := readers.DeleteStream(ctx, Stream); err != nil {
				return fmt.Errorf("eventlog: delete the readers' usage mirror: %w", err)
			}
		}
		return withinSpace(MirrorConfig(replicas), func(config jetstream.StreamConfig) error {
			if _, err := readers.CreateOrUpdateStream(ctx, config); err != nil {
				return fmt.Errorf("eventlog: create the readers' usage mirror: %w", err)
			}
			return nil
		})
	})
}

// MirrorConfig returns the configuration of a mirror of the usage stream.
func MirrorConfig(replicas int) jetstream.StreamConfig {
	config := bounded(eventlog.MirrorConfig(Stream, replicas))
	config.MaxMsgSize = -1 // the mirrored stream limits the size
	return config
}

// A Meter writes usage records to the usage stream. Requests do not wait for the stream: a record
// that the stream does not accept in time is lost, and the loss is logged.
type Meter struct {
	Space *disk.Space // space on the embedded server's disk; Record returns its error on a nearly full disk
	js    jetstream.JetStream

	reserved sync.Map // *nats.Msg → func(), which releases the space of a record that is not acknowledged
}

// usageCopies is how often a record is written: to the stream, and to the mirror of all readers.
const usageCopies = 2

// Limits on records that the stream has not acknowledged: their number, how long Record waits when
// that number is reached, and how long it takes until a record counts as lost.
const (
	maxPending = 4096
	meterStall = 10 * time.Millisecond
	meterAck   = 30 * time.Second
)

// NewMeter returns a meter that publishes to the existing usage stream over a connection.
func NewMeter(nc *nats.Conn, logger *slog.Logger) (*Meter, error) {
	m := &Meter{}
	lost := func(_ jetstream.JetStream, message *nats.Msg, err error) {
		m.release(message)
		logger.Warn("usage of a request was not recorded", "subject", message.Subject, "error", err)
	}
	recorded := func(_ jetstream.JetStream, message *nats.Msg, _ *jetstream.PubAck) { m.release(message) }
	var err error
	m.js, err = jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(maxPending),
		jetstream.WithPublishAsyncErrHandler(lost), jetstream.WithPublishAsyncAckHandler(recorded),
		jetstream.WithPublishAsyncTimeout(meterAck))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return m, nil
}

// Record publishes a usage record without waiting for its acknowledgement.
func (m *Meter) Record(u Record) error {
	message, err := u.message()
	if err != nil {
		return err
	}
	done, err := m.Space.Reserve(disk.Requests, int64(usageCopies*message.Size()))
	if err != nil {
		return err
	}
	m.reserved.Store(message, done)
	if _, err := m.js.PublishMsgAsync(message, jetstream.WithStallWait(meterStall)); err != nil {
		m.release(message)
		return fmt.Errorf("eventlog: record usage: %w", err)
	}
	return nil
}

// release releases the space that was reserved for a record.
func (m *Meter) release(message *nats.Msg) {
	if done, ok := m.reserved.LoadAndDelete(message); ok {
		done.(func())()
	}
}

// message returns the record as a CloudEvent about its deployment, on the usage subject of its
// account and kind.
func (u Record) message() (*nats.Msg, error) {
	data, err := encode(u)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	message := eventlog.Encode(eventlog.Event{Record: domain.Record{Type: usageType, Data: data}, ID: id.String(),
		Name: u.Deployment, Time: u.Time,
		Actor: string(u.Key), Correlation: u.Request})
	message.Subject = "usage." + u.Account + "." + u.Kind
	if !eventlog.ValidSubject(message.Subject) {
		return nil, errors.New("eventlog: a usage record needs an account and a kind")
	}
	message.Header[jetstream.MsgIDHeader] = []string{id.String()}
	return message, nil
}

// Close waits until all records are acknowledged. It returns an error when ctx is done first.
func (m *Meter) Close(ctx context.Context) error {
	select {
	case <-m.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
