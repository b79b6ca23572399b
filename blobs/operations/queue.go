package operations

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"anneal/domain"
)

// Limits of the operations without results of an account. Each control plane counts those that were
// submitted to it.
const (
	MaxQueued      = 10_000
	MaxQueuedBytes = 256 << 20
)

// ReasonQueueFull is the reason of the error of Submit when an account would have more than
// MaxQueued operations without results, or more than MaxQueuedBytes of them.
const ReasonQueueFull = "TOO_MANY_OPERATIONS"

// A queue has the sizes in bytes of an account's operations that were submitted to this control
// plane and have, as far as it knows, no result yet.
type queue struct {
	sizes   map[queued]int
	bytes   int
	checked time.Time // when prune was called last
}

type queued struct {
	lane Lane
	seq  int64
}

// pruneInterval is the minimum time between two searches for results that were not announced.
const pruneInterval = time.Second

func (m *memory) enqueue(lane Lane, seq int64, size int) {
	q := m.queues[lane.Account]
	if q == nil {
		q = &queue{sizes: map[queued]int{}}
		m.queues[lane.Account] = q
	}
	if _, found := q.sizes[queued{lane, seq}]; !found {
		q.sizes[queued{lane, seq}], q.bytes = size, q.bytes+size
	}
}

func (m *memory) dequeue(lane Lane, seq int64) {
	q := m.queues[lane.Account]
	if q == nil {
		return
	}
	q.bytes -= q.sizes[queued{lane, seq}]
	if delete(q.sizes, queued{lane, seq}); len(q.sizes) == 0 {
		delete(m.queues, lane.Account)
	}
}

// drop removes all operations of a lane.
func (m *memory) drop(lane Lane) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if q := m.queues[lane.Account]; q != nil {
		for one := range q.sizes {
			if one.lane == lane {
				m.dequeue(lane, one.seq)
			}
		}
	}
}

// Queued returns the number and the bytes of the operations of an account that were submitted here and
// have no result yet.
func (s *Store) Queued(account string) (operations, bytes int) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if q := s.memory.queues[account]; q != nil {
		return len(q.sizes), q.bytes
	}
	return 0, 0
}

// checkCapacity returns ResourceExhausted if the account has too many operations without results.
func (s *Store) checkCapacity(ctx context.Context, account string, size int) error {
	full := func() bool {
		n, bytes := s.Queued(account)
		return n >= MaxQueued || bytes+size > MaxQueuedBytes
	}
	if !full() {
		return nil
	}
	if s.prune(ctx, account); !full() {
		return nil
	}
	n, bytes := s.Queued(account)
	return &domain.Error{Code: domain.ResourceExhausted, Reason: ReasonQueueFull,
		Message: fmt.Sprintf("accounts/%s has %d operations with %d bytes that are not executed yet, and may have %d with "+
			"%d bytes: wait for their results before you send more", account, n, bytes, MaxQueued, MaxQueuedBytes)}
}

// prune removes the operations whose results another control plane has stored without an
// announcement that arrived here, and those of deleted jobs.
func (s *Store) prune(ctx context.Context, account string) {
	s.memory.mu.Lock()
	q := s.memory.queues[account]
	if q == nil || s.now().Sub(q.checked) < pruneInterval {
		s.memory.mu.Unlock()
		return
	}
	q.checked = s.now()
	all := slices.Collect(maps.Keys(q.sizes))
	s.memory.mu.Unlock()
	for _, one := range all {
		_, failure := s.blobs.Size(ctx, one.lane.resultKey(one.seq))
		if domain.CodeOf(failure) == domain.NotFound {
			_, failure = s.blobs.Size(ctx, one.lane.operationKey(one.seq))
			if domain.CodeOf(failure) != domain.NotFound {
				continue
			}
		}
		s.memory.mu.Lock()
		s.memory.dequeue(one.lane, one.seq)
		s.memory.mu.Unlock()
	}
}
