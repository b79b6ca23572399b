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

// maxLot bounds the rows that a worker is asked for at a time: enough that it
// never waits for the next one, and few enough that workers end together.
const maxLot = 64

var errNotOpen = domain.Errorf(domain.FailedPrecondition, "the evaluation is closed")

// Score implements engines.Evaluation. Rows are handed out in lots to as many
// workers as are free, and scores stand where their rows do.
func (e *evaluation) Score(ctx context.Context, rows []map[string]any) ([]engines.Score, error) {
	asked := make([][]byte, len(rows))
	for i, row := range rows {
		data, err := json.Marshal(row)
		if err != nil {
			return nil, domain.Errorf(domain.InvalidArgument, "row %d: is not JSON: %v", i, err)
		}
		asked[i] = data
	}
	most := cap(e.turns)
	lot := min(max(len(rows)/(2*most), 1), maxLot)
	lots := int64(len(rows)+lot-1) / int64(lot)
	scores := make([]engines.Score, len(rows))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var all sync.WaitGroup
	for range min(lots, int64(most)) {
		all.Go(func() {
			for n := next.Add(1) - 1; n < lots && ctx.Err() == nil; n = next.Add(1) - 1 {
				from := int(n) * lot
				to := min(from+lot, len(rows))
				if err := e.scoreLot(ctx, asked[from:to], scores[from:to]); err != nil {
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

// scoreLot has rows scored in one seat. Those behind a row that broke its worker
// are asked of the next.
func (e *evaluation) scoreLot(ctx context.Context, asked [][]byte, scores []engines.Score) error {
	s, leave, err := e.sit(ctx)
	if err != nil {
		return err
	}
	defer leave()
	for done := 0; done < len(asked); {
		if s.worker == nil {
			if s.worker, err = e.start(ctx, s.user); err != nil {
				return err
			}
		}
		left := asked[done:]
		some, whole := s.worker.score(ctx, left[:min(len(left), s.worker.left)], e.sandbox.options)
		done += copy(scores[done:], some)
		if s.worker.left -= len(some); !whole || s.worker.left == 0 {
			s.end()
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

// sit takes the seat that was used last, when one is free, so that there are no
// more workers than are busy at one time.
func (e *evaluation) sit(ctx context.Context) (s *seat, leave func(), err error) {
	select {
	case e.turns <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		<-e.turns
		return nil, nil, errNotOpen
	}
	s, e.idle = e.idle[len(e.idle)-1], e.idle[:len(e.idle)-1]
	return s, func() {
		e.mu.Lock()
		e.idle = append(e.idle, s)
		e.mu.Unlock()
		<-e.turns
	}, nil
}

// end ends the seat's worker, if it has one.
func (s *seat) end() {
	if s.worker != nil {
		s.worker.kill()
		s.worker = nil
	}
}

// Close implements engines.Evaluation. What is being scored is scored first.
func (e *evaluation) Close() error {
	e.once.Do(func() {
		for range cap(e.turns) {
			e.turns <- struct{}{}
		}
		e.mu.Lock()
		e.closed = true
		e.mu.Unlock()
		e.discard()
		for range cap(e.turns) {
			<-e.turns
		}
	})
	return nil
}

// discard ends all workers and lets go of everything.
func (e *evaluation) discard() {
	for _, s := range e.idle {
		s.end()
	}
	if e.dir != "" {
		_ = os.RemoveAll(e.dir)
	}
	if e.held != nil {
		_ = e.held.Close()
	}
	for _, s := range e.idle {
		e.sandbox.users.give(s.user)
	}
}
