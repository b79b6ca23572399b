package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/eventlog"
)

// Stream is the JetStream stream of the audit records. It is not part of the log, and nothing
// depends on it.
const Stream = "AUDIT"

// Limits of the stream. At a limit the NATS server deletes the oldest records.
const (
	MaxAge   = 90 * 24 * time.Hour
	MaxBytes = 64 << 20
	// MaxPerAccount is the maximum number of stored records of one account, and of all callers that
	// were not authenticated, so that they cannot push out the records of other accounts.
	MaxPerAccount = 20_000

	// maxRecord is the maximum size of a message in bytes, with its headers. It includes space for
	// JSON escapes: a byte of a cleaned text takes at most two bytes, because encode does not
	// escape HTML.
	maxRecord = 9 << 10
	repeats   = 2 * time.Minute
)

const (
	subjects  = "audit."
	anonymous = "_" // subject token for callers that were not authenticated; not a valid account ID
)

func subjectOf(account string) string {
	if account == "" {
		account = anonymous
	}
	return subjects + account
}

// noStorage is the code of the JetStream error "insufficient storage resources available".
const noStorage jetstream.ErrorCode = 10047

// EnsureStream creates or updates the stream. When the NATS server cannot reserve MaxBytes of its
// storage, the stream gets no limit in bytes, because the control plane must start even on a nearly
// full disk.
func EnsureStream(ctx context.Context, js jetstream.JetStream, replicas int) error {
	config := jetstream.StreamConfig{
		Name:              Stream,
		Description:       "Refused and failed requests, logins and reads of secrets, kept for 90 days",
		Subjects:          []string{subjects + "*"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		Duplicates:        repeats,
		MaxMsgSize:        maxRecord,
		MaxAge:            MaxAge,
		MaxBytes:          MaxBytes,
		MaxMsgsPerSubject: MaxPerAccount,
		Discard:           jetstream.DiscardOld,
		DenyDelete:        true,
		DenyPurge:         true,
	}
	err := eventlog.EnsureStream(ctx, js, config, replicas)
	var refused *jetstream.APIError
	if !errors.As(err, &refused) || refused.ErrorCode != noStorage {
		return err
	}
	slog.Warn("the NATS server cannot reserve the maximum size of a stream, so the stream has no limit in bytes: "+
		"raise max_file_store of the server", "stream", Stream,
		"bytes", MaxBytes)
	config.MaxBytes = -1
	return eventlog.EnsureStream(ctx, js, config, replicas)
}

// A StreamStore is a Store on the JetStream stream.
type StreamStore struct {
	js    jetstream.JetStream
	space *disk.Space // checked before each Append; nil disables the check
}

// OpenStream returns a Store on the stream, which must exist.
func OpenStream(nc *nats.Conn, space *disk.Space) (*StreamStore, error) {
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(2*batch),
		jetstream.WithPublishAsyncTimeout(appendTime))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return &StreamStore{js, space}, nil
}

// Append implements Store.
func (s *StreamStore) Append(ctx context.Context, records []Record) error {
	if err := s.space.Check(disk.Requests, 0); err != nil {
		return err
	}
	var sent []jetstream.PubAckFuture
	for _, record := range records {
		data, err := encode(record)
		if err != nil {
			return err
		}
		message := &nats.Msg{Subject: subjectOf(record.Account), Data: data,
			Header: nats.Header{jetstream.MsgIDHeader: {record.ID}}}
		if !eventlog.ValidSubject(message.Subject) {
			return fmt.Errorf("store an audit record: account ID %q has characters that a NATS subject does not "+
				"allow", record.Account)
		}
		ack, err := s.js.PublishMsgAsync(message, jetstream.WithStallWait(appendTime))
		if err != nil {
			return fmt.Errorf("store an audit record: %w", err)
		}
		sent = append(sent, ack)
	}
	for _, one := range sent {
		select {
		case <-one.Ok():
		case err := <-one.Err():
			return fmt.Errorf("store an audit record: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func encode(record Record) ([]byte, error) {
	var data bytes.Buffer
	encoder := json.NewEncoder(&data)
	encoder.SetEscapeHTML(false) // escaping would turn one byte of a client's text into six
	err := encoder.Encode(record)
	return bytes.TrimSuffix(data.Bytes(), []byte("\n")), err
}

// Read implements Store.
func (s *StreamStore) Read(ctx context.Context, account string, all bool) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		fail := func(err error) { yield(Record{}, fmt.Errorf("read stream %s: %w", Stream, err)) }
		stream, err := s.js.Stream(ctx, Stream)
		if err != nil {
			fail(err)
			return
		}
		filter, last := subjectOf(account), stream.CachedInfo().State.LastSeq
		if all {
			filter = subjects + "*"
		}
		consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{FilterSubjects: []string{filter}})
		if err != nil {
			fail(err)
			return
		}
		if consumer.CachedInfo().NumPending == 0 {
			return
		}
		messages, err := consumer.Messages()
		if err != nil {
			fail(err)
			return
		}
		defer messages.Stop()
		for {
			record, more, err := nextRecord(ctx, messages, last)
			var damaged DamagedError
			switch {
			case errors.As(err, &damaged):
				if !yield(Record{}, damaged) || !more {
					return
				}
			case err != nil:
				fail(err)
				return
			case record.Sequence > 0 && !yield(record, nil) || !more:
				return
			}
		}
	}
}

// A DamagedError reports an audit record that cannot be decoded. Later records can still be read.
type DamagedError struct {
	Position uint64 // sequence number of the record's message in the stream
	Err      error
}

func (e DamagedError) Error() string {
	return fmt.Sprintf("the audit record at position %d is damaged: %v", e.Position, e.Err)
}

// nextRecord returns the next record, or a DamagedError when the record cannot be decoded. It
// returns the zero Record when the next message is after the position last. more is false when
// there is no further record up to last.
func nextRecord(ctx context.Context, messages jetstream.MessagesContext, last uint64) (r Record, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, appendTime)
	defer cancel()
	message, err := messages.Next(jetstream.NextContext(ctx))
	if err != nil {
		return r, false, err
	}
	meta, err := message.Metadata()
	if err != nil || meta.Sequence.Stream > last {
		return r, false, err
	}
	more = meta.NumPending > 0 && meta.Sequence.Stream < last
	if err := json.Unmarshal(message.Data(), &r); err != nil {
		return Record{}, more, DamagedError{meta.Sequence.Stream, err}
	}
	r.Sequence = meta.Sequence.Stream
	return r, more, nil
}

// Memory is a Store in memory, for tests.
type Memory struct {
	mu      sync.Mutex
	records []Record
	fail    error
}

// Fail makes Append return err from now on; nil makes it succeed again.
func (m *Memory) Fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fail = err
}

// Append implements Store.
func (m *Memory) Append(_ context.Context, records []Record) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return m.fail
	}
	for _, r := range records {
		r.Sequence = uint64(len(m.records) + 1)
		m.records = append(m.records, r)
	}
	return nil
}

// Read implements Store.
func (m *Memory) Read(_ context.Context, account string, all bool) iter.Seq2[Record, error] {
	m.mu.Lock()
	defer m.mu.Unlock()
	records := m.records[:len(m.records):len(m.records)]
	return func(yield func(Record, error) bool) {
		for _, r := range records {
			if (all || r.Account == account && account != "") && !yield(r, nil) {
				return
			}
		}
	}
}
