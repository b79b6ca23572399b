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

// An evaluation is code with the workers that run it.
type evaluation struct {
	sandbox *Sandbox
	code    engines.EvaluatorCode
	dir     string        // copy of the code
	held    *os.File      // dir, while it is in use
	turns   chan struct{} // holds one for each seat that is taken

	mu     sync.Mutex
	idle   []*seat // those that are not taken; the last was used last
	once   sync.Once
	closed bool
}

// A seat is a place for one worker, which starts when there is something to do
// for it.
type seat struct {
	user   user
	worker *worker // nil when the last one ended
}

// start makes a worker ready to score.
func (e *evaluation) start(ctx context.Context, user user) (*worker, error) {
	w, err := e.sandbox.launch(e.dir, user, order{Entry: e.code.EntryFile, Function: e.code.EntryFunc, Env: e.code.Env})
	if err != nil {
		return nil, err
	}
	stop := w.until(ctx)
	defer stop()
	ready, err := w.hear(0, e.sandbox.options.OpenTime)
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case err != nil:
		err = w.wanted(err, e.sandbox.options.OpenTime)
	case ready.Refused != "":
		err = domain.Errorf(domain.InvalidArgument, "%s", ready.Refused)
	}
	if err != nil {
		w.kill()
		return nil, err
	}
	return w, nil
}

// build checks the code in a worker of its own and answers what was found.
func (e *evaluation) build(ctx context.Context, requirements string) (string, error) {
	within := e.sandbox.options.OpenTime + e.sandbox.options.RowTime
	w, err := e.sandbox.launch(e.dir, e.idle[0].user, order{Entry: e.code.EntryFile, Function: e.code.EntryFunc, Env: e.code.Env, Build: true, Requirements: requirements})
	if err != nil {
		return "", err
	}
	defer w.kill()
	stop := w.until(ctx)
	defer stop()
	built, err := w.hear(0, within)
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
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
	switch {
	case err != nil:
		return log.String(), w.wanted(err, within)
	case built.Refused != "":
		return log.String(), domain.Errorf(domain.InvalidArgument, "%s", built.Refused)
	}
	return log.String(), nil
}

// score asks for rows one after another without waiting in between. It answers
// the scores that came, in order, of which the last may be that of the row with
// which the worker broke; whole tells whether the worker can go on.
func (w *worker) score(ctx context.Context, rows [][]byte, o Options) (scores []engines.Score, whole bool) {
	stop := w.until(ctx)
	defer stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	defer func() {
		if !whole {
			_ = w.line.SetWriteDeadline(time.Now()) // whoever still sends stops
		}
	}()
	_ = w.line.SetWriteDeadline(time.Time{})
	first := o.Rows - w.left + 1 // IDs count from 1 in the life of a worker
	sending.Go(func() {
		for i, row := range rows {
			if _, err := fmt.Fprintf(w.line, "{\"id\":%d,\"row\":%s}\n", first+i, row); err != nil {
				return // the answers break off too, and say why
			}
		}
	})
	for i := range rows {
		a, err := w.hear(first+i, o.RowTime)
		if err != nil {
			return append(scores, engines.Score{Reason: w.broke(err, o.RowTime), Stdout: w.stdout.take(), Stderr: w.stderr.take()}), false
		}
		scores = append(scores, a.shown(w.stdout.take(), w.stderr.take(), o.Output))
		if a.CPU > o.CPUTime.Seconds()/2 {
			return scores, false // before it has used up its time with a row that is not to blame
		}
	}
	return scores, true
}

// shown is the score of an answer. The other texts are what did not go through
// Python; they are told with the row during which they came.
func (a answer) shown(stdout, stderr string, limit int) engines.Score {
	cut := func(text string) string {
		if len(text) > limit+16 {
			text = strings.ToValidUTF8(text[:limit], "")
		}
		return text
	}
	s := engines.Score{Value: a.Score, Valid: a.Valid, Reason: a.Reason, Metrics: a.Metrics, Stdout: cut(a.Stdout + stdout), Stderr: cut(a.Stderr + stderr)}
	if s.Valid && !(s.Value >= 0 && s.Value <= 1) {
		s = engines.Score{Reason: fmt.Sprintf("the score %g is not from 0 to 1", s.Value)}
	}
	return s
}

// broke is why a row has no score because of which its worker is of no use any more.
func (w *worker) broke(err error, within time.Duration) string {
	switch {
	case errors.Is(err, errSilent):
		return fmt.Sprintf("the code took longer than %s", within)
	case errors.Is(err, io.EOF):
		return "the process of the code broke off: " + w.autopsy()
	}
	return "the process of the code was ended: " + err.Error()
}
