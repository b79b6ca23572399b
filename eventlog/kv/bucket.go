package kv

import (
	"anneal/eventlog"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// A bucket is a keyStore on a JetStream key-value bucket. What was put is on
// disk when put returns.
type Bucket struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	name    string // of the stream
	subject string // before the ids
	what    string // it holds, for messages
}

// openBucket opens the bucket of a stream that ensure makes when it is missing.
func OpenBucket(ctx context.Context, nc *nats.Conn, stream, what string, ensure func(context.Context, jetstream.JetStream, int) error) (*Bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if err := ensure(ctx, js, 0); err != nil {
		return nil, err
	}
	opened, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("eventlog: opening the bucket of the %s: %w", what, err)
	}
	return &Bucket{nc, js, opened, stream, "$KV." + strings.TrimPrefix(stream, "KV_") + ".", what}, nil
}

func (b *Bucket) Get(ctx context.Context, id string) ([]byte, uint64, error) {
	m, err := b.stream.GetLastMsgForSubject(ctx, b.subject+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("eventlog: reading %s: %w", b.what, err)
	}
	if m.Header.Get("KV-Operation") != "" { // deleted by another tool
		return nil, 0, nil
	}
	return m.Data, m.Sequence, nil
}

func (b *Bucket) Put(ctx context.Context, id string, record []byte, revision uint64) (uint64, error) {
	ack, err := b.js.Publish(ctx, b.subject+id, record, jetstream.WithExpectLastSequencePerSubject(revision))
	if eventlog.IsSequenceConflict(err) {
		return 0, eventlog.ErrConflict
	}
	if err != nil {
		return 0, fmt.Errorf("eventlog: keeping %s: %w", b.what, err)
	}
	return ack.Sequence, eventlog.RequestSync(ctx, b.nc, b.name)
}

func (b *Bucket) Delete(ctx context.Context, id string) error {
	if err := b.DeleteUnsynced(ctx, id); err != nil {
		return err
	}
	return eventlog.RequestSync(ctx, b.nc, b.name)
}

// eraseUnsynced deletes a key and overwrites it, but does not wait for the disk.
// Of several that do so at once one deletes; the others see that it is gone.
func (b *Bucket) DeleteUnsynced(ctx context.Context, id string) error {
	for refused := uint64(0); ; {
		m, err := b.stream.GetLastMsgForSubject(ctx, b.subject+id)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err == nil {
			err = b.stream.SecureDeleteMsg(ctx, m.Sequence)
		}
		if errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) && m.Sequence != refused {
			refused = m.Sequence // somebody else may have deleted it just now
			continue
		}
		if err != nil {
			return fmt.Errorf("eventlog: deleting %s: %w", b.what, err)
		}
	}
}

func (b *Bucket) Keys(ctx context.Context) ([]string, error) {
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.subject+">"))
	if err != nil {
		return nil, fmt.Errorf("eventlog: listing the %s: %w", b.what, err)
	}
	var ids []string
	for subject := range info.State.Subjects {
		ids = append(ids, strings.TrimPrefix(subject, b.subject))
	}
	slices.Sort(ids)
	return ids, nil
}

func NewMemory() *Memory {
	return &Memory{records: map[string][]byte{}, revisions: map[string]uint64{}}
}

// memoryKeys is the keyStore of tests.
type Memory struct {
	mu        sync.Mutex
	records   map[string][]byte
	revisions map[string]uint64
	last      uint64
}

func (k *Memory) Get(_ context.Context, id string) ([]byte, uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.records[id], k.revisions[id], nil
}

func (k *Memory) Put(_ context.Context, id string, record []byte, revision uint64) (uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.revisions[id] != revision {
		return 0, eventlog.ErrConflict
	}
	k.last++
	k.records[id], k.revisions[id] = record, k.last
	return k.last, nil
}

func (k *Memory) Delete(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.records, id)
	delete(k.revisions, id)
	return nil
}

func (k *Memory) Keys(context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.records)), nil
}

// A keyStore holds wrapped data keys by their ids.
type Store interface {
	// get answers the record and its revision; 0 when there is none.
	Get(ctx context.Context, id string) (record []byte, revision uint64, err error)
	// put records, provided that the id's revision is still the one given, and
	// answers the new one; otherwise ErrConflict.
	Put(ctx context.Context, id string, record []byte, revision uint64) (uint64, error)
	// erase takes the record away for good; no record is no error.
	Delete(ctx context.Context, id string) error
	Keys(ctx context.Context) ([]string, error)
}

// purge deletes every record.
func (b *Bucket) Purge(ctx context.Context) error {
	return b.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject+">"))
}

// sizeHeader tells of a message without its data how large that is.
const sizeHeader = "Nats-Msg-Size"

// follow reports the size and time of every record, and then of each that is put, until ctx
// is done or the connection is closed.
func (b *Bucket) Follow(ctx context.Context, each func(id string, revision uint64, size int64, at time.Time)) error {
	for {
		err := b.followOnce(ctx, each)
		if b.nc.IsClosed() || !eventlog.Sleep(ctx, time.Second) {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

func (b *Bucket) followOnce(ctx context.Context, each func(id string, revision uint64, size int64, at time.Time)) error {
	consumer, err := b.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return fmt.Errorf("eventlog: following the %s: %w", b.what, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("eventlog: following the %s: %w", b.what, err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("eventlog: following the %s: %w", b.what, err)
		}
		put, err := m.Metadata()
		size, notNumber := strconv.ParseInt(m.Headers().Get(sizeHeader), 10, 64)
		if err == nil && notNumber == nil {
			each(strings.TrimPrefix(m.Subject(), b.subject), put.Sequence.Stream, size, put.Timestamp)
		}
	}
}
