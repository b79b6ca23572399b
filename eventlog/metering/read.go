package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog"
)

// A Reader reads records from the usage stream.
type Reader struct{ js jetstream.JetStream }

// NewReader returns a Reader of the usage stream on a NATS connection.
func NewReader(nc *nats.Conn) (*Reader, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("read usage records: %w", err)
	}
	return &Reader{js}, nil
}

// A State describes the usage stream: the time of its creation and the sequence of its newest
// record.
type State struct {
	Created time.Time
	Last    uint64
}

// State returns the current state of the usage stream.
func (r *Reader) State(ctx context.Context) (State, error) {
	stream, err := r.js.Stream(ctx, Stream)
	if err != nil {
		return State{}, fmt.Errorf("look up the usage stream: %w", err)
	}
	info := stream.CachedInfo()
	return State{Created: info.Created.UTC().Truncate(time.Millisecond), Last: info.State.LastSeq}, nil
}

// Read calls visit with the records after the sequence start, up to the sequence through. It skips
// messages that are not usage records. It does not set the fields Request and Trace.
func (r *Reader) Read(ctx context.Context, start, through uint64, visit func(Record)) error {
	return r.read(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: start + 1}, start < through, through, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
		var record Record
		if json.Unmarshal(m.Data(), &record) != nil || record.Account == "" {
			return
		}
		header := m.Headers()
		record.ID, record.ControlPlane = header.Get(eventlog.HeaderID), header.Get(eventlog.HeaderControlPlane)
		var err error
		if record.Time, err = time.Parse(time.RFC3339Nano, header.Get(headerTime)); err != nil {
			record.Time = meta.Timestamp
		}
		visit(record)
	})
}

// headerTime is the NATS header with the time of a usage record.
const headerTime = "ce-time"

// Repeatable reports whether another record may have the same ID. That is so for the requests of a
// batch, whose IDs are derived from the line of the request (UUID version 5): a line can be
// executed again after a crash.
func (u Record) Repeatable() bool { return len(u.ID) == 36 && u.ID[14] == '5' }

// Known returns which of the given IDs belong to usage records that the stream received after the
// time start and up to the sequence through.
func (r *Reader) Known(ctx context.Context, ids map[string]bool, start time.Time, through uint64) (map[string]bool,
	error) {
	known := map[string]bool{}
	err := r.read(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy,
		OptStartTime: &start, HeadersOnly: true}, len(ids) > 0 && through > 0, through,
		func(m jetstream.Msg, _ *jetstream.MsgMetadata) {
			if id := m.Headers().Get(eventlog.HeaderID); ids[id] {
				known[id] = true
			}
		})
	return known, err
}

func (r *Reader) read(ctx context.Context, config jetstream.OrderedConsumerConfig, any bool, through uint64,
	visit func(jetstream.Msg, *jetstream.MsgMetadata)) error {
	if !any {
		return nil
	}
	stream, err := r.js.Stream(ctx, Stream)
	if err != nil {
		return fmt.Errorf("read usage records: %w", err)
	}
	consumer, err := stream.OrderedConsumer(ctx, config)
	if err != nil {
		return fmt.Errorf("read usage records: %w", err)
	}
	if consumer.CachedInfo().NumPending == 0 {
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("read usage records: %w", err)
	}
	defer messages.Stop()
	for {
		message, err := next(ctx, messages)
		if err != nil {
			return fmt.Errorf("read usage records: %w", err)
		}
		meta, err := message.Metadata()
		if err != nil {
			return errors.Join(err, errors.New("read usage records: a message has no sequence"))
		}
		if meta.Sequence.Stream <= through {
			visit(message, meta)
		}
		if meta.NumPending == 0 || meta.Sequence.Stream >= through {
			return nil
		}
	}
}

// Source returns the ID of the control plane that sent the record; "" in records of earlier
// versions.
func (u Record) Source() string { return u.ControlPlane }
