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

// A Reader reads the records of the usage stream.
type Reader struct{ js jetstream.JetStream }

// NewReader returns a reader over a connection.
func NewReader(nc *nats.Conn) (*Reader, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("read usage records: %w", err)
	}
	return &Reader{js}, nil
}

// A State describes the usage stream: when it was created, and the sequence of its newest record.
type State struct {
	Created time.Time
	Last    uint64
}

// State returns the state of the stream.
func (r *Reader) State(ctx context.Context) (State, error) {
	stream, err := r.js.Stream(ctx, Stream)
	if err != nil {
		return State{}, fmt.Errorf("look up the usage stream: %w", err)
	}
	info := stream.CachedInfo()
	return State{Created: info.Created.UTC().Truncate(time.Millisecond), Last: info.State.LastSeq}, nil
}

// Read calls visit with the records whose sequences are after one and at most another. A message that is
// not a usage record is skipped. Of the Record, the fields Request and Trace are not set.
func (r *Reader) Read(ctx context.Context, after, through uint64, visit func(Record)) error {
	return r.read(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartSequencePolicy,
		OptStartSeq: after + 1}, after < through, through, func(m jetstream.Msg, meta *jetstream.MsgMetadata) {
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

// headerTime is the header with the time of a record.
const headerTime = "ce-time"

// Repeatable reports whether another record may have the same ID: whether the request was one of a batch,
// whose ID is derived from its line (a UUID of version 5).
func (u Record) Repeatable() bool { return len(u.ID) == 36 && u.ID[14] == '5' }

// Known returns which of the IDs are of records that have arrived after a time and have a sequence of at
// most through.
func (r *Reader) Known(ctx context.Context, ids map[string]bool, since time.Time, through uint64) (map[string]bool,
	error) {
	known := map[string]bool{}
	err := r.read(ctx, jetstream.OrderedConsumerConfig{DeliverPolicy: jetstream.DeliverByStartTimePolicy,
		OptStartTime: &since, HeadersOnly: true}, len(ids) > 0 && through > 0, through,
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

// Source returns the ID of the control plane that numbered the record; "" in records of earlier versions.
func (u Record) Source() string { return u.ControlPlane }
