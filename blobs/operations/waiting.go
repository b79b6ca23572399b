package operations

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"anneal/blobs"
	"anneal/domain"
)

// memory is the part of a Store that is not in files. It is safe for concurrent use.
type memory struct {
	mu      sync.Mutex
	waiters map[Lane]map[int64]map[*waiter]bool // callers of Wait and Next, by lane and sequence number
	jobs    map[jobKey]*job
	queues  map[string]*queue // by account
}

type jobKey struct{ account, event string }

func newMemory() *memory {
	return &memory{waiters: map[Lane]map[int64]map[*waiter]bool{}, jobs: map[jobKey]*job{}, queues: map[string]*queue{}}
}

// A waiter is a caller of Wait or Next.
type waiter struct {
	changed chan *Result // receives the result, or nil if the caller must read the store again; buffer of 1
}

func (w *waiter) wake(r *Result) {
	select {
	case w.changed <- r:
	default: // the caller reads the store again anyway
	}
}

func (m *memory) wait(lane Lane, seq int64) *waiter {
	w := &waiter{make(chan *Result, 1)}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiters[lane] == nil {
		m.waiters[lane] = map[int64]map[*waiter]bool{}
	}
	if m.waiters[lane][seq] == nil {
		m.waiters[lane][seq] = map[*waiter]bool{}
	}
	m.waiters[lane][seq][w] = true
	return w
}

func (m *memory) leave(lane Lane, seq int64, w *waiter) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.waiters[lane][seq], w)
	if len(m.waiters[lane][seq]) == 0 {
		delete(m.waiters[lane], seq)
	}
	if len(m.waiters[lane]) == 0 {
		delete(m.waiters, lane)
	}
}

// Waiting returns the number of callers that wait for results or operations.
func (s *Store) Waiting() (n int) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	for _, lane := range s.memory.waiters {
		for _, waiters := range lane {
			n += len(waiters)
		}
	}
	return n
}

// A job holds what is known about the lanes of one trainer job.
type job struct {
	changed chan struct{}         // closed at the next change of a lane
	pending map[PendingSample]int // sampling operations without results, with the order; nil until they are listed
	order   int
}

// add adds an operation to pending. It does nothing if pending has it or was not listed.
func (j *job) add(sample PendingSample) {
	if _, found := j.pending[sample]; !found && j.pending != nil {
		j.order++
		j.pending[sample] = j.order
	}
}

// A PendingSample is an operation of a sampling session that has no result.
type PendingSample struct {
	Lane Lane
	Seq  int64
}

func (m *memory) job(account, event string) *job {
	key := jobKey{account, event}
	if m.jobs[key] == nil {
		m.jobs[key] = &job{changed: make(chan struct{})}
	}
	return m.jobs[key]
}

// Changed returns a channel that is closed at the next change of a lane of the job: an operation is
// submitted, or another control plane announces a change.
func (s *Store) Changed(account, event string) <-chan struct{} {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	return s.memory.job(account, event).changed
}

func (j *job) change() {
	close(j.changed)
	j.changed = make(chan struct{})
}

func (m *memory) submitted(lane Lane, seq int64, size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.enqueue(lane, seq, size)
	j := m.job(lane.Account, lane.Job)
	if lane.Samples {
		j.add(PendingSample{lane, seq})
	}
	j.change()
	for w := range m.waiters[lane][seq] {
		w.wake(nil)
	}
}

func (m *memory) finished(lane Lane, seq int64, r *Result) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dequeue(lane, seq)
	delete(m.job(lane.Account, lane.Job).pending, PendingSample{lane, seq})
	for w := range m.waiters[lane][seq] {
		w.wake(r)
	}
}

// Notify records that another control plane has changed a lane. It wakes the callers that wait for
// the given sequence numbers, or all callers of the lane if none is given.
func (s *Store) Notify(lane Lane, seqs ...int64) {
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	j := s.memory.job(lane.Account, lane.Job)
	if lane.Samples {
		j.pending = nil
	}
	j.change()
	for _, seq := range seqs {
		s.memory.dequeue(lane, seq) // if it was submitted here, another control plane announces its result
	}
	for seq, waiters := range s.memory.waiters[lane] {
		if len(seqs) > 0 && !slices.Contains(seqs, seq) {
			continue
		}
		for w := range waiters {
			w.wake(nil)
		}
	}
}

// Pending returns the sampling operations of a job that have no results. Those that were found by
// listing the files come first; those that were submitted to this control plane follow in order.
func (s *Store) Pending(ctx context.Context, account, event string) ([]PendingSample, error) {
	s.memory.mu.Lock()
	j := s.memory.job(account, event)
	if j.pending != nil {
		defer s.memory.mu.Unlock()
		return j.list(), nil
	}
	fresh := map[PendingSample]int{}
	j.pending = fresh // from here on, submitted and finished change it
	s.memory.mu.Unlock()
	listed, err := s.listSamples(ctx, account, event)
	s.memory.mu.Lock()
	defer s.memory.mu.Unlock()
	if err != nil {
		j.pending = nil
		return nil, err
	}
	all := &job{pending: map[PendingSample]int{}}
	for _, sample := range slices.Concat(listed, (&job{pending: fresh}).list()) {
		all.add(sample)
	}
	if j.pending != nil { // Notify has not been called meanwhile
		j.pending, j.order = all.pending, all.order
	}
	return all.list(), nil
}

// list returns the pending operations in order.
func (j *job) list() []PendingSample {
	return slices.SortedFunc(maps.Keys(j.pending), func(a, b PendingSample) int {
		return cmp.Compare(j.pending[a], j.pending[b])
	})
}

// listSamples lists the sampling operations of a job without results.
func (s *Store) listSamples(ctx context.Context, account, event string) (pending []PendingSample, err error) {
	finished := map[PendingSample]bool{}
	for file, err := range s.blobs.List(ctx, blobs.JournalPrefix(account, event)+samplesDir) {
		if err != nil {
			return nil, err
		}
		sample, suffix, ok := sampleOf(account, event, file.Key)
		switch {
		case ok && suffix == resultSuffix:
			finished[sample] = true
		case ok:
			pending = append(pending, sample)
		}
	}
	return slices.DeleteFunc(pending, func(p PendingSample) bool { return finished[p] }), nil
}

// sampleOf returns the sampling operation to which the file with a key belongs, and the suffix of
// the file.
func sampleOf(account, event, key string) (sample PendingSample, suffix string, ok bool) {
	rest, ok := strings.CutPrefix(key, blobs.JournalPrefix(account, event)+samplesDir)
	id, name, found := strings.Cut(rest, "/")
	for _, suffix := range []string{operationSuffix, resultSuffix} {
		if number, is := strings.CutSuffix(name, suffix); ok && found && is {
			seq, err := strconv.ParseInt(number, 10, 64)
			return PendingSample{Lane{account, event, id, true}, seq}, suffix, err == nil
		}
	}
	return sample, "", false
}

// Trim deletes the operations of a run up to the sequence number through, because a recovery
// checkpoint includes them, and their results that were stored before limit. Next then returns
// DataLoss for them.
func (s *Store) Trim(ctx context.Context, lane Lane, through int64, limit time.Time) error {
	state, err := s.lane(ctx, lane)
	if err != nil {
		return err
	}
	if through > state.Through {
		state.Through = through
		if _, err := s.blobs.Put(ctx, lane.prefix()+laneFile, bytes.NewReader(encodeLane(state))); err != nil {
			return err
		}
	}
	var keys []string
	for file, err := range s.blobs.List(ctx, lane.prefix()) {
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(file.Key, lane.prefix())
		for _, suffix := range []string{operationSuffix, resultSuffix} {
			number, is := strings.CutSuffix(name, suffix)
			seq, err := strconv.ParseInt(number, 10, 64)
			if is && err == nil && seq <= state.Through && (suffix == operationSuffix || file.Time.Before(limit)) {
				keys = append(keys, file.Key)
			}
		}
	}
	return s.blobs.DeleteAll(ctx, keys)
}

// Sweep deletes the sampling operations of a job that have a result, and the results that were
// stored before limit.
func (s *Store) Sweep(ctx context.Context, account, event string, limit time.Time) error {
	finished := map[PendingSample]bool{}
	operations := map[PendingSample]string{}
	var keys []string
	for file, err := range s.blobs.List(ctx, blobs.JournalPrefix(account, event)+samplesDir) {
		if err != nil {
			return err
		}
		sample, suffix, ok := sampleOf(account, event, file.Key)
		switch {
		case ok && suffix == resultSuffix:
			finished[sample] = true
			if file.Time.Before(limit) {
				keys = append(keys, file.Key)
			}
		case ok:
			operations[sample] = file.Key
		}
	}
	for sample, key := range operations {
		if finished[sample] {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys) // SEQ.op before SEQ.result: after a crash in between, the operation is not executed again
	return s.blobs.DeleteAll(ctx, keys)
}

// End deletes the operations of a run that accepts no more, and those of its results that are older than
// the time limit. Its operations without results no longer count for Submit. done is true if nothing is left
// but what tells the journal from a lost one.
func (s *Store) End(ctx context.Context, lane Lane, limit time.Time) (done bool, err error) {
	s.memory.drop(lane)
	var keys []string
	done = true
	for file, err := range s.blobs.List(ctx, lane.prefix()) {
		if err != nil {
			return false, err
		}
		switch {
		case strings.HasSuffix(file.Key, operationSuffix),
			strings.HasSuffix(file.Key, resultSuffix) && file.Time.Before(limit):
			keys = append(keys, file.Key)
		case strings.HasSuffix(file.Key, resultSuffix):
			done = false
		}
	}
	return done, s.blobs.DeleteAll(ctx, keys)
}

// Discard deletes all operations and results of a sampling session.
func (s *Store) Discard(ctx context.Context, lane Lane) error {
	if !lane.Samples {
		return domain.Errorf(domain.Internal, "the journal of a run is deleted with its job")
	}
	s.Notify(lane)
	return s.blobs.DeletePrefix(ctx, lane.prefix())
}
