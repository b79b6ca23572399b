package sandbox

import (
	"context"
	"encoding/json"
	"os"
	"sync"
	"sync/atomic"

	"anneal/domain"
	"anneal/engines"
)

// maxBatch is the maximum number of rows that are sent to a worker at a time: enough to keep the
// worker busy, but few enough that all workers finish at about the same time.
const maxBatch = 64

var errClosed = domain.Errorf(domain.FailedPrecondition, "the evaluation is closed")

// Score implements engines.Evaluation. It distributes batches of rows among idle workers.
func (e *evaluation) Score(ctx context.Context, rows []map[string]any) ([]engines.Score, error) {
	encoded := make([][]byte, len(rows))
	for i, row := range rows {
		data, err := json.Marshal(row)
		if err != nil {
			return nil, domain.Errorf(domain.InvalidArgument, "row %d cannot be encoded as JSON: %v", i, err)
		}
		encoded[i] = data
	}
	workers := cap(e.busy)
	size := min(max(len(rows)/(2*workers), 1), maxBatch)
	batches := int64(len(rows)+size-1) / int64(size)
	scores := make([]engines.Score, len(rows))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(batches, int64(workers)) {
		all.Go(func() {
			for n := next.Add(1) - 1; n < batches && ctx.Err() == nil; n = next.Add(1) - 1 {
				from := int(n) * size
				to := min(from+size, len(rows))
				if err := e.scoreBatch(ctx, encoded[from:to], scores[from:to]); err != nil {
					cancel(err)
				}
			}
		})
	}
	all.Wait()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return scores, nil
}

// scoreBatch scores rows in one slot. If a row makes the worker fail, a new worker scores the rows
// after it.
func (e *evaluation) scoreBatch(ctx context.Context, rows [][]byte, scores []engines.Score) error {
	s, release, err := e.acquire(ctx)
	if err != nil {
		return err
	}
	defer release()
	for done := 0; done < len(rows); {
		if s.worker == nil {
			if s.worker, err = e.start(ctx, s.user); err != nil {
				return err
			}
		}
		left := rows[done:]
		some, ok := s.worker.score(ctx, left[:min(len(left), s.worker.rowsLeft)], e.sandbox.options)
		done += copy(scores[done:], some)
		if s.worker.rowsLeft -= len(some); !ok || s.worker.rowsLeft == 0 {
			s.kill()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// acquire waits for an idle slot, and returns the one that was used most recently. So the
// evaluation starts only as many workers as are busy at the same time. The caller returns the slot
// with release.
func (e *evaluation) acquire(ctx context.Context) (s *slot, release func(), err error) {
	select {
	case e.busy <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		<-e.busy
		return nil, nil, errClosed
	}
	s, e.idle = e.idle[len(e.idle)-1], e.idle[:len(e.idle)-1]
	return s, func() {
		e.mu.Lock()
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		<-e.busy
	}, nil
}

// kill kills the worker of the slot, if there is one.
func (s *slot) kill() {
	if s.worker != nil {
		s.worker.kill()
		s.worker = nil
	}
}

// Close implements engines.Evaluation. It waits for running calls of Score.
func (e *evaluation) Close() error {
	e.once.Do(func() {
		for range cap(e.busy) {
			e.busy <- struct{}{}
		}
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.discard()
		for range cap(e.busy) {
			<-e.busy
		}
	})
	return nil
}

// discard kills all workers, removes the copy of the code, and releases the users.
func (e *evaluation) discard() {
	for _, s := range e.idle {
		s.kill()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
	if e.lock != nil {
		_ = e.lock.Close()
	}
	for _, s := range e.idle {
		e.sandbox.users.release(s.user)
	}
}
