package agent

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"anneal/workers/protocol"
)

// An outbox uploads the checkpoints of an attempt in the background, one at a time. While a
// checkpoint is being uploaded, only the newest later one is kept for the next upload, so that a
// slow or unreachable store does not delay the training.
type outbox struct {
	attempt *attempt
	ctx     context.Context
	cancel  context.CancelFunc
	wake    chan struct{} // receives an element when a checkpoint waits
	closed  chan struct{} // closed by flush: put adds no more checkpoints
	done    chan struct{}

	mu      sync.Mutex
	copies  int
	waiting *checkpoint
}

type checkpoint struct {
	step int
	dir  string // directory with the outbox's own copy of the checkpoint
}

func newOutbox(t *attempt) *outbox {
	o := &outbox{attempt: t, wake: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{})}
	o.ctx, o.cancel = context.WithCancel(t.life)
	t.agent.work.Go(o.run)
	return o
}

// put copies the checkpoint in dir, which then waits for its upload. It replaces an older
// checkpoint that still waits.
func (o *outbox) put(step int, dir string) error {
	o.mu.Lock()
	o.copies++
	copied := filepath.Join(o.attempt.dir, "outbox", strconv.Itoa(o.copies))
	o.mu.Unlock()
	if err := copyDir(dir, copied); err != nil {
		return err
	}
	o.attempt.rollouts.write(copied, step)
	o.mu.Lock()
	old := o.waiting
	o.waiting = &checkpoint{step, copied}
	o.mu.Unlock()
	if old != nil {
		_ = os.RemoveAll(old.dir) // when the removal fails, the directory is removed together with that of the attempt
	}
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return nil
}

// flush waits until the waiting checkpoint is uploaded, or the attempt has ended. put must not be
// called afterwards.
func (o *outbox) flush() {
	close(o.closed)
	<-o.done
	o.cancel()
}

// discard drops the waiting checkpoint. It is called when the training is complete, so that only
// the results are needed.
func (o *outbox) discard() {
	o.cancel()
	o.flush()
}

func (o *outbox) run() {
	defer close(o.done)
	for o.ctx.Err() == nil {
		o.mu.Lock()
		next := o.waiting
		o.waiting = nil
		o.mu.Unlock()
		if next != nil {
			o.upload(next)
			continue
		}
		select {
		case <-o.wake:
			continue
		default:
		}
		select {
		case <-o.wake:
		case <-o.ctx.Done():
		case <-o.closed:
			o.mu.Lock()
			empty := o.waiting == nil
			o.mu.Unlock()
			if empty {
				return
			}
		}
	}
}

// upload uploads a checkpoint and reports it to the coordinator. When that fails, the checkpoint is
// dropped, because the training continues and writes newer ones.
func (o *outbox) upload(c *checkpoint) {
	defer os.RemoveAll(c.dir)
	t := o.attempt
	for range maxStores {
		sizes, sums, err := t.store(o.ctx, protocol.ForCheckpoint, c.step, c.dir)
		if o.ctx.Err() != nil {
			return
		}
		if err != nil {
			t.log.Warn("cannot store a checkpoint: it is dropped; the training continues", "step", c.step, "error", err)
			return
		}
		outcome, err := t.report(o.ctx, protocol.Report{Kind: protocol.ReportCheckpoint, Step: c.step, Sizes: sizes,
			Sums: sums, Metrics: t.latestValues(c.step)})
		switch {
		case err == nil && outcome == protocol.Accepted:
			t.log.Info("checkpoint stored", "step", c.step)
			t.joblog.logf("checkpoint of step %d stored", c.step)
			return
		case err != nil && o.ctx.Err() == nil:
			t.log.Warn("cannot report a checkpoint to the control plane: it is dropped; the training "+
				"continues", "step", c.step, "error", err)
			return
		case err != nil:
			return
		}
	}
	t.log.Warn("dropped a checkpoint: it was uploaded several times, but the store lacked files of it each "+
		"time", "step", c.step)
}

// latestValues returns the newest value of each metric up to a step.
func (t *attempt) latestValues(step int) map[string]float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	values := map[string]float64{}
	for _, row := range t.metrics.rows {
		if row.Step > step {
			break
		}
		for name, value := range row.Values {
			values[name] = value
		}
	}
	return values
}

// copyDir copies the files below the directory src to dst, which it creates.
func copyDir(src, dst string) error {
	return filepath.WalkDir(src, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		switch target := filepath.Join(dst, name); {
		case entry.IsDir():
			return os.MkdirAll(target, 0o700)
		case entry.Type().IsRegular():
			return copyFile(path, target)
		}
		return nil
	})
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(target, source)
	return errors.Join(err, target.Close())
}
