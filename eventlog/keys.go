package eventlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// The bucket KEYS is a JetStream key-value bucket with history 1, except that
// single messages may be deleted from it, and overwritten on disk: that is
// what it is for. Reads ask the leader, so a key is there once it was put.
const (
	keysStream  = "KV_KEYS"
	keysSubject = "$KV.KEYS."
)

func ensureKeys(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return ensureStream(ctx, js, jetstream.StreamConfig{
		Name:              keysStream,
		Description:       "Wrapped data keys of sealed values; deleting one deletes its value",
		Subjects:          []string{keysSubject + ">"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
		AllowRollup:       true,
	}, replicas)
}

type bucket struct {
	nc     *nats.Conn
	js     jetstream.JetStream
	stream jetstream.Stream
}

func openBucket(ctx context.Context, nc *nats.Conn) (*bucket, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	if err := ensureKeys(ctx, js, 0); err != nil {
		return nil, err
	}
	stream, err := js.Stream(ctx, keysStream)
	if err != nil {
		return nil, fmt.Errorf("eventlog: opening the bucket KEYS: %w", err)
	}
	return &bucket{nc, js, stream}, nil
}

func (b *bucket) get(ctx context.Context, id string) ([]byte, uint64, error) {
	m, err := b.stream.GetLastMsgForSubject(ctx, keysSubject+id)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("eventlog: reading a data key: %w", err)
	}
	if m.Header.Get("KV-Operation") != "" { // deleted by another tool
		return nil, 0, nil
	}
	return m.Data, m.Sequence, nil
}

func (b *bucket) put(ctx context.Context, id string, record []byte, revision uint64) error {
	_, err := b.js.Publish(ctx, keysSubject+id, record, jetstream.WithExpectLastSequencePerSubject(revision))
	var refusal *jetstream.APIError
	if errors.As(err, &refusal) && (refusal.ErrorCode == codeWrongSequence || refusal.ErrorCode == codeSubjectBusy) {
		return ErrConflict
	}
	if err != nil {
		return fmt.Errorf("eventlog: keeping a data key: %w", err)
	}
	return askSync(ctx, b.nc, keysStream)
}

func (b *bucket) erase(ctx context.Context, id string) error {
	for {
		m, err := b.stream.GetLastMsgForSubject(ctx, keysSubject+id)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return askSync(ctx, b.nc, keysStream)
		}
		if err == nil {
			err = b.stream.SecureDeleteMsg(ctx, m.Sequence)
		}
		if err != nil {
			return fmt.Errorf("eventlog: deleting a data key: %w", err)
		}
	}
}

func (b *bucket) ids(ctx context.Context) ([]string, error) {
	info, err := b.stream.Info(ctx, jetstream.WithSubjectFilter(keysSubject+">"))
	if err != nil {
		return nil, fmt.Errorf("eventlog: listing the data keys: %w", err)
	}
	var ids []string
	for subject := range info.State.Subjects {
		ids = append(ids, strings.TrimPrefix(subject, keysSubject))
	}
	slices.Sort(ids)
	return ids, nil
}

// memoryKeys is the keyStore of tests.
type memoryKeys struct {
	mu        sync.Mutex
	records   map[string][]byte
	revisions map[string]uint64
	last      uint64
}

func (k *memoryKeys) get(_ context.Context, id string) ([]byte, uint64, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.records[id], k.revisions[id], nil
}

func (k *memoryKeys) put(_ context.Context, id string, record []byte, revision uint64) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.revisions[id] != revision {
		return ErrConflict
	}
	k.last++
	k.records[id], k.revisions[id] = record, k.last
	return nil
}

func (k *memoryKeys) erase(_ context.Context, id string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.records, id)
	delete(k.revisions, id)
	return nil
}

func (k *memoryKeys) ids(context.Context) ([]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.records)), nil
}
