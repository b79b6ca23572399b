package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
)

// UsageStream holds what requests to models have used. It lies beside the log:
// nothing is decided by it, and what is old goes.
const Stream = "USAGE"

const (
	usageType = "usage.recorded.v1"
	usageKept = 35 * 24 * time.Hour // a month, and time to read it
	// A bound in bytes would be set aside by the server, which then does not
	// start on a disk that is nearly full.
	usageRecords = 2_000_000
	maxUsage     = 4 << 10 // bytes of one; it takes about 500
)

// A Usage is what one request to a model has used.
type Record struct {
	Time       time.Time   `json:"-"`
	Request    string      `json:"-"`       // the ID that its answer carries
	Kind       string      `json:"kind"`    // UsageOfCompletion …
	Account    string      `json:"account"` // of the key
	Key        domain.Name `json:"apiKey"`
	Deployment domain.Name `json:"deployment"`
	Model      string      `json:"model"`    // as the request names it
	Complete   bool        `json:"complete"` // false of one that broke off, which counts as far as it came

	PromptTokens       int     `json:"promptTokens,omitempty"`
	CachedPromptTokens int     `json:"cachedPromptTokens,omitempty"` // of them
	CompletionTokens   int     `json:"completionTokens,omitempty"`
	AudioSeconds       float64 `json:"audioSeconds,omitempty"`
}

// Kinds of usage.
const (
	Completion    = "completion"
	Chat          = "chat"
	Transcription = "transcription"
	Translation   = "translation"
)

// ensureUsage makes the stream of usage. A mirror of it has the same bounds.
func EnsureStream(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, bounded(jetstream.StreamConfig{
		Name:        Stream,
		Description: "What requests to models have used: one CloudEvent for each, for 35 days",
		Subjects:    []string{"usage.>"},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, replicas),
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
	}), replicas)
}

func bounded(config jetstream.StreamConfig) jetstream.StreamConfig {
	config.MaxMsgSize, config.MaxAge, config.MaxMsgs, config.Discard = maxUsage, usageKept, usageRecords, jetstream.DiscardOld
	return config
}

// ensureUsageMirror makes the mirror that readers see. They can have a consumer deliver
// to any subject of their own account: so what they are shown is recorded in
// another. A mirror that is ahead of its stream, which a power failure has set
// back, is made anew.
func EnsureMirror(ctx context.Context, readers, control jetstream.JetStream, replicas int) error {
	return eventlog.Retry(ctx, func(ctx context.Context) error {
		there, err := readers.Stream(ctx, Stream)
		if err != nil && !errors.Is(err, jetstream.ErrStreamNotFound) {
			return fmt.Errorf("eventlog: looking for the readers' usage: %w", err)
		}
		kept, failed := control.Stream(ctx, Stream)
		if failed != nil {
			return fmt.Errorf("look up stream %s: %w", Stream, failed)
		}
		if err == nil && there.CachedInfo().State.LastSeq > kept.CachedInfo().State.LastSeq {
			if err := readers.DeleteStream(ctx, Stream); err != nil {
				return fmt.Errorf("eventlog: the readers' usage cannot be made anew: %w", err)
			}
		}
		if _, err := readers.CreateOrUpdateStream(ctx, MirrorConfig(replicas)); err != nil {
			return fmt.Errorf("eventlog: making the readers' usage: %w", err)
		}
		return nil
	})
}

// usageMirror is the configuration of a mirror of the usage stream.
func MirrorConfig(replicas int) jetstream.StreamConfig {
	config := bounded(eventlog.MirrorConfig(Stream, replicas))
	config.MaxMsgSize = -1 // what is mirrored is bounded
	return config
}

// A Meter records usage. No request waits for it: what the stream does not take
// soon is lost, and said in the log of the process.
type Meter struct {
	Space *disk.Space // of the embedded server's disk; on a short one nothing is recorded
	js    jetstream.JetStream
}

// Limits of what a stream that does not answer may hold up.
const (
	unmetered  = 4096 // records on their way
	meterStall = 10 * time.Millisecond
	meterAck   = 30 * time.Second
)

// NewMeter opens the stream of usage.
func NewMeter(nc *nats.Conn, logger *slog.Logger) (*Meter, error) {
	lost := func(_ jetstream.JetStream, m *nats.Msg, err error) {
		logger.Warn("what a request used was not recorded", "subject", m.Subject, "error", err)
	}
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(unmetered), jetstream.WithPublishAsyncErrHandler(lost),
		jetstream.WithPublishAsyncTimeout(meterAck))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &Meter{js: js}, nil
}

// Record sends what a request used on its way.
func (m *Meter) Record(u Record) error {
	if err := m.Space.Check(disk.Requests, 0); err != nil {
		return err
	}
	message, err := u.message()
	if err != nil {
		return err
	}
	if _, err := m.js.PublishMsgAsync(message, jetstream.WithStallWait(meterStall)); err != nil {
		return fmt.Errorf("eventlog: recording usage: %w", err)
	}
	return nil
}

// message is the usage as a CloudEvent of its deployment.
func (u Record) message() (*nats.Msg, error) {
	data, err := json.Marshal(u)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	message := eventlog.Encode(eventlog.Event{Record: domain.Record{Type: usageType, Data: data}, ID: id.String(), Name: u.Deployment, Time: u.Time,
		Actor: string(u.Key), Correlation: u.Request})
	message.Subject = "usage." + u.Account + "." + u.Kind
	if !eventlog.ValidSubject(message.Subject) {
		return nil, errors.New("eventlog: usage needs an account and a kind")
	}
	message.Header[jetstream.MsgIDHeader] = []string{id.String()}
	return message, nil
}

// Close waits until what is on its way has arrived, or ctx is done.
func (m *Meter) Close(ctx context.Context) error {
	select {
	case <-m.js.PublishAsyncComplete():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
