package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// An evaluation is a copy of an evaluator's code, with the workers that run it.
type evaluation struct {
	sandbox *Sandbox
	code    engines.EvaluatorCode
	dir     string        // directory of the copy
	lock    *os.File      // lock of dir
	busy    chan struct{} // semaphore: one element for each slot in use

	mu     sync.Mutex
	idle   []*slot // slots that are not in use; the last one was used most recently
	once   sync.Once
	closed bool
}

// A slot has the operating-system user as which one worker runs. A worker is started when a slot
// without one is used.
type slot struct {
	user   user
	worker *worker // nil if no worker is running
}

// start starts a worker as a user, and waits until the worker has imported the code.
func (e *evaluation) start(ctx context.Context, user user) (*worker, error) {
	w, err := e.sandbox.launch(e.dir, user, setup{Entry: e.code.EntryFile, Function: e.code.EntryFunc, Env: e.code.Env})
	if err != nil {
		return nil, err
	}
	stop := w.killOnDone(ctx)
	defer stop()
	ready, err := w.receive(0, e.sandbox.options.OpenTime)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = w.startError(err, e.sandbox.options.OpenTime)
	case ready.Error != "":
		err = domain.Errorf(domain.InvalidArgument, "%s", ready.Error)
	}
	if err != nil {
		w.kill()
		return nil, err
	}
	return w, nil
}

// build checks the code and its requirements in a separate worker. It returns the log of the build
// even if the code is invalid.
func (e *evaluation) build(ctx context.Context, requirements string) (engines.BuildReport, error) {
	timeout := e.sandbox.options.OpenTime + e.sandbox.options.RowTime
	w, err := e.sandbox.launch(e.dir, e.idle[0].user, setup{
		Entry: e.code.EntryFile, Function: e.code.EntryFunc, Env: e.code.Env, Build: true, Requirements: requirements,
	})
	if err != nil {
		return engines.BuildReport{}, err
	}
	defer w.kill()
	stop := w.killOnDone(ctx)
	defer stop()
	built, err := w.receive(0, timeout)
	if ctx.Err() != nil {
		return engines.BuildReport{}, context.Cause(ctx)
	}
	var log strings.Builder
	for _, line := range built.Log {
		fmt.Fprintln(&log, line)
	}
	for name, text := range map[string]string{"stdout": built.Stdout, "stderr": built.Stderr} {
		if text != "" {
			fmt.Fprintf(&log, "--- %s\n%s\n", name, strings.TrimRight(text, "\n"))
		}
	}
	report := engines.BuildReport{Log: log.String(), Trial: built.Trial}
	switch {
	case err != nil:
		return report, w.startError(err, timeout)
	case built.Error != "":
		return report, domain.Errorf(domain.InvalidArgument, "%s", built.Error)
	}
	return report, nil
}

// score scores rows, which it sends without waiting for each response, and returns the scores in
// order. If ok is false, the worker must be replaced: it has failed on the row of the last score,
// or has used more than half of its CPU time. Later rows are then not scored.
func (w *worker) score(ctx context.Context, rows [][]byte, o Options) (scores []engines.Score, ok bool) {
	stop := w.killOnDone(ctx)
	defer stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer func() {
		if !ok {
			_ = w.conn.SetWriteDeadline(time.Now()) // ends the goroutine that sends
		}
	}()
	_ = w.conn.SetWriteDeadline(time.Time{})
	first := o.Rows - w.rowsLeft + 1 // the IDs of rows count from 1 for each worker
	sending.Go(func() {
		for i, row := range rows {
			if _, err := fmt.Fprintf(w.conn, "{\"id\":%d,\"row\":%s}\n", first+i, row); err != nil {
				return // receive also fails, and returns the reason
			}
		}
	})
	for i := range rows {
		r, err := w.receive(first+i, o.RowTime)
		if err != nil {
			failed := engines.Score{
				Reason: w.scoreError(err, o.RowTime), Stdout: w.stdout.take(), Stderr: w.stderr.take(),
			}
			return append(scores, failed), false
		}
		scores = append(scores, r.toScore(w.stdout.take(), w.stderr.take(), o.Output))
		if r.CPU > o.CPUTime.Seconds()/2 {
			return scores, false // the worker could otherwise reach its CPU limit in a later row
		}
	}
	return scores, true
}

// toScore converts a response of a worker. stdout and stderr are output that did not pass through
// Python's streams while the row was scored, such as that of child processes. limit is the maximum
// length of each text.
func (r response) toScore(stdout, stderr string, limit int) engines.Score {
	cut := func(text string) string {
		if len(text) > limit+16 {
			text = strings.ToValidUTF8(text[:limit], "")
		}
		return text
	}
	s := engines.Score{
		Value: r.Score, Valid: r.Valid, Reason: r.Reason, Metrics: r.Metrics,
		Stdout: cut(r.Stdout + stdout), Stderr: cut(r.Stderr + stderr),
	}
	if s.Valid && !(s.Value >= 0 && s.Value <= 1) {
		s = engines.Score{Reason: fmt.Sprintf("the score %g is not between 0 and 1: return a number in this range", s.Value)}
	}
	return s
}

// scoreError returns the reason of an invalid score for a row on which the worker failed.
func (w *worker) scoreError(err error, timeout time.Duration) string {
	switch {
	case errors.Is(err, errTimeout):
		return fmt.Sprintf("the code took longer than %s", timeout)
	case errors.Is(err, io.EOF):
		return "the sandbox process exited: " + w.exitReason()
	}
	return "the sandbox process was killed: " + err.Error()
}
