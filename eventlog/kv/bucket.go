package kv

import (
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

	"anneal/domain"
	"anneal/eventlog"
)

// A Bucket is a Store in a JetStream key-value bucket. A change is on disk when Put or Delete
// returns.
type Bucket struct {
	nc      *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream
	name    string // name of the bucket's JetStream stream
	subject string // prefix of a record's subject, before its ID
	what    string // what the records are, such as "data keys", for error messages
}

// OpenBucket opens the bucket whose records are in a JetStream stream. It calls ensure, which
// creates the stream if it does not exist. what says what the records are, such as "data keys", for
// error messages.
func OpenBucket(ctx context.Context, nc *nats.Conn, stream, what string,
	ensure func(context.Context, jetstream.JetStream, int) error) (*Bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if err := ensure(ctx, js, 0); err != nil {
		return nil, err
	}
	opened, err := js.Stream(ctx, stream)
	if err != nil {
		return nil, fmt.Errorf("open the JetStream bucket of the %s: %w", what, err)
	}
	return &Bucket{nc, js, opened, stream, "$KV." + strings.TrimPrefix(stream, "KV_") + ".", what}, nil
}

func (b *Bucket) Get(ctx context.Context, id string) ([]byte, uint64, error) {
	m, err := b.stream.GetLastMsgForSubject(ctx, b.subject+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, b.fault(ctx, "read", err)
	}
	if m.Header.Get("KV-Operation") != "" { // a marker of a deletion by another tool: there is no record
		return nil, 0, nil
	}
	return m.Data, m.Sequence, nil
}

// Put repeats a write for putTime while no server accepts it, because after a failure the cluster
// may still elect the leader of the bucket's stream.
const (
	putTime  = 5 * time.Second
	putPause = 100 * time.Millisecond
)

func (b *Bucket) Put(ctx context.Context, id string, record []byte, revision uint64) (uint64, error) {
	ack, err := b.js.Publish(ctx, b.subject+id, record, jetstream.WithExpectLastSequencePerSubject(revision),
		jetstream.WithRetryWait(putPause), jetstream.WithRetryAttempts(int(putTime/putPause)))
	if eventlog.IsSequenceConflict(err) {
		return 0, eventlog.ErrConflict
	}
	if err != nil {
		return 0, b.fault(ctx, "write", err)
	}
	return ack.Sequence, b.sync(ctx)
}

func (b *Bucket) Delete(ctx context.Context, id string) error {
	if err := b.DeleteUnsynced(ctx, id); err != nil {
		return err
	}
	return b.sync(ctx)
}

func (b *Bucket) sync(ctx context.Context) error {
	return b.fault(ctx, "sync", eventlog.RequestSync(ctx, b.nc, b.name))
}

// fault converts the error of an operation on the bucket. When the NATS cluster does not respond,
// it returns an Unavailable error, after which the client tries again. verb names the operation in
// the message.
func (b *Bucket) fault(ctx context.Context, verb string, err error) error {
	var fault *domain.Error
	switch {
	case err == nil, errors.As(err, &fault):
		return err
	case ctx.Err() != nil:
		return fmt.Errorf("%s %s in NATS: %w", verb, b.what, err)
	}
	return domain.Errorf(domain.Unavailable, "cannot %s %s, because the NATS cluster does not respond (%v): try again",
		verb, b.what, err)
}

// DeleteUnsynced deletes the record with an ID and overwrites its message on disk, but does not
// wait for a sync. Concurrent calls for the same ID all succeed.
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
			refused = m.Sequence // a concurrent call may have deleted the message: look it up once more
			continue
		}
		if err != nil {
			return b.fault(ctx, "delete", err)
		}
	}
}

func (b *Bucket) Keys(ctx context.Context) ([]string, error) {
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(b.subject+">"))
	if err != nil {
		return nil, b.fault(ctx, "list", err)
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

// Memory is a Store in memory, for tests.
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

// A Store is a key-value store whose keys are the IDs of records.
type Store interface {
	// Get returns a record and its revision. The revision is 0 when there is no record.
	Get(ctx context.Context, id string) (record []byte, revision uint64, err error)
	// Put stores a record and returns its new revision. revision must be the record's current
	// revision, or 0 for a new record; otherwise Put returns ErrConflict.
	Put(ctx context.Context, id string, record []byte, revision uint64) (uint64, error)
	// Delete removes a record and its content on disk. It returns nil for a missing record.
	Delete(ctx context.Context, id string) error
	Keys(ctx context.Context) ([]string, error)
}

// Purge deletes all records of the bucket.
func (b *Bucket) Purge(ctx context.Context) error {
	return b.stream.Purge(ctx, jetstream.WithPurgeSubject(b.subject+">"))
}

// sizeHeader is the header with the size of a message whose data a consumer does not deliver.
const sizeHeader = "Nats-Msg-Size"

// Follow calls visit for every existing record, and then for every record that is stored, until ctx
// is done or the connection is closed.
func (b *Bucket) Follow(ctx context.Context, visit func(id string, revision uint64, size int64, at time.Time)) error {
	for {
		err := b.followOnce(ctx, visit)
		if b.nc.IsClosed() || !eventlog.Sleep(ctx, time.Second) {
			return cmp.Or(ctx.Err(), err)
		}
	}
}

func (b *Bucket) followOnce(ctx context.Context,
	each func(id string, revision uint64, size int64, at time.Time)) error {
	consumer, err := b.stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return fmt.Errorf("follow the changes of the %s in NATS: %w", b.what, err)
	}
	messages, err := consumer.Messages()
	if err != nil {
		return fmt.Errorf("follow the changes of the %s in NATS: %w", b.what, err)
	}
	defer messages.Stop()
	for {
		m, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("follow the changes of the %s in NATS: %w", b.what, err)
		}
		put, err := m.Metadata()
		size, notNumber := strconv.ParseInt(m.Headers().Get(sizeHeader), 10, 64)
		if err == nil && notNumber == nil {
			each(strings.TrimPrefix(m.Subject(), b.subject), put.Sequence.Stream, size, put.Timestamp)
		}
	}
}
