package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	rolloutInterval = 10 * time.Second // minimum interval of uploads of the rollouts file
	rolloutTimeout  = time.Minute      // how long one upload is retried
)

// rollouts has the scored rollouts of an attempt, and those of earlier attempts up to the
// checkpoint from which it resumed. It uploads them in the background. A failed upload is logged
// and repeated with the next rollouts; it does not delay the training.
type rollouts struct {
	attempt *attempt
	wake    chan struct{} // receives an element when there are rollouts to upload
	closed  chan struct{} // closed by flush: add is not called any more
	done    chan struct{}

	mu       sync.Mutex
	batches  []rolloutBatch // rollouts by training step, in the order in which they were generated
	size     int            // total length of the lines of all batches in bytes
	changes  int            // number of changes of the field batches so far
	uploaded int            // value of changes at the last upload
}

// A rolloutBatch has the rollouts of a training step, or of the evaluation after a step.
type rolloutBatch struct {
	step       int
	evaluation bool
	lines      []byte // the rollouts, one JSON object per line
}

func newRollouts(t *attempt) *rollouts {
	r := &rollouts{attempt: t, wake: make(chan struct{}, 1), closed: make(chan struct{}), done: make(chan struct{})}
	t.agent.work.Go(r.run)
	return r
}

// add implements engines.RolloutRecorder. It replaces the rollouts that an earlier attempt
// generated for the same step.
func (r *rollouts) add(all []engines.Rollout) {
	if len(all) == 0 {
		return
	}
	batch := rolloutBatch{step: all[0].Step, evaluation: all[0].Evaluation}
	for i := range all {
		line, err := json.Marshal(&all[i])
		if err != nil {
			r.attempt.log.Warn("cannot encode a rollout: it will be missing in the rollouts of the "+
				"job", "step", batch.step, "error", err)
			continue
		}
		if len(batch.lines)+len(line)+1 > engines.MaxStepRolloutsBytes {
			break
		}
		batch.lines = append(append(batch.lines, line...), '\n')
	}
	r.mu.Lock()
	r.batches = slices.DeleteFunc(r.batches, func(b rolloutBatch) bool {
		return b.step == batch.step && b.evaluation == batch.evaluation
	})
	r.batches = append(r.batches, batch)
	r.changes++
	r.thin()
	r.mu.Unlock()
	r.requestUpload()
}

// thin removes rollouts until the rest fit into engines.MaxRolloutsBytes. It keeps the first step,
// the newest steps, and every second step in between; if that is still too much, every fourth, and
// so on. If even that is too much, which happens only for a file that no agent wrote, it removes
// the oldest steps.
func (r *rollouts) thin() {
	const maxStride = 1 << 30

	r.measure()
	for stride := 2; r.size > engines.MaxRolloutsBytes && stride <= maxStride; stride *= 2 {
		kept, newer := r.batches[:0:0], 0 // newer counts the bytes of the newer steps
		for _, b := range slices.Backward(r.batches) {
			if newer < engines.MaxRolloutsBytes/4 || (b.step-1)%stride == 0 {
				kept = append(kept, b)
			}
			newer += len(b.lines)
		}
		slices.Reverse(kept)
		r.batches = kept
		r.measure()
	}
	for r.size > engines.MaxRolloutsBytes {
		r.size -= len(r.batches[0].lines)
		r.batches = r.batches[1:]
	}
}

func (r *rollouts) measure() {
	r.size = 0
	for _, b := range r.batches {
		r.size += len(b.lines)
	}
}

// until returns the lines of the rollouts up to a step.
func (r *rollouts) until(step int) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var lines []byte
	for _, b := range r.batches {
		if b.step <= step {
			lines = append(lines, b.lines...)
		}
	}
	return lines
}

// write writes the rollouts up to a step into the directory dir of that step's checkpoint. An
// attempt that resumes from the checkpoint generates the later rollouts again.
func (r *rollouts) write(dir string, step int) {
	lines := r.until(step)
	if len(lines) == 0 {
		return
	}
	if err := os.WriteFile(filepath.Join(dir, engines.RolloutsFile), lines, 0o600); err != nil {
		r.attempt.log.Warn("cannot write the rollouts into a checkpoint: they are lost if the job resumes from "+
			"it", "step", step, "error", err)
	}
}

// read reads the rollouts in the checkpoint in dir, from which the attempt resumes. It skips
// invalid lines, and lines of a step beyond engines.MaxStepRolloutsBytes.
func (r *rollouts) read(dir string) {
	f, err := os.Open(filepath.Join(dir, engines.RolloutsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		r.attempt.log.Warn("cannot read the rollouts in the checkpoint: those of earlier attempts are lost", "error", err)
		return
	}
	defer f.Close()
	r.mu.Lock()
	type key struct {
		step       int
		evaluation bool
	}
	index := map[key]int{} // by step: index in r.batches
	err = engines.ReadRollouts(f, func(at *engines.Rollout, line []byte) bool {
		i, known := index[key{at.Step, at.Evaluation}]
		if !known {
			i = len(r.batches)
			index[key{at.Step, at.Evaluation}] = i
			r.batches = append(r.batches, rolloutBatch{step: at.Step, evaluation: at.Evaluation})
		}
		b := &r.batches[i]
		if len(b.lines)+len(line)+1 <= engines.MaxStepRolloutsBytes {
			b.lines = append(append(b.lines, line...), '\n')
		}
		return true
	})
	r.changes++
	r.thin()
	r.mu.Unlock()
	if err != nil {
		r.attempt.log.Warn("cannot read all rollouts in the checkpoint: some of earlier attempts are lost", "error", err)
	}
	r.requestUpload()
}

func (r *rollouts) requestUpload() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run uploads the rollouts at most every rolloutInterval, until flush is called.
func (r *rollouts) run() {
	defer close(r.done)
	life := r.attempt.life.Done()
	for {
		select {
		case <-r.wake:
			r.upload()
		case <-r.closed:
			r.upload()
			return
		case <-life:
			return
		}
		pause := time.NewTimer(rolloutInterval)
		select {
		case <-pause.C:
		case <-r.closed:
		case <-life:
		}
		pause.Stop()
	}
}

// flush uploads the last rollouts. The attempt must still be assigned, and add must not be called
// any more.
func (r *rollouts) flush() {
	close(r.closed)
	<-r.done
}

// upload uploads the rollouts file if it has changed since the last upload.
func (r *rollouts) upload() {
	r.mu.Lock()
	changes := r.changes
	var content bytes.Buffer
	for _, b := range r.batches {
		content.Write(b.lines)
	}
	pending := changes > r.uploaded
	r.mu.Unlock()
	if !pending {
		return
	}
	t := r.attempt
	ctx, cancel := context.WithTimeout(t.life, rolloutTimeout)
	defer cancel()
	dir := filepath.Join(t.dir, "rollouts")
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, engines.RolloutsFile), content.Bytes(), 0o600)
	}
	if err == nil {
		_, _, err = t.store(ctx, protocol.ForRollouts, 0, dir)
	}
	if t.life.Err() != nil {
		return
	}
	if err != nil {
		t.log.Warn("cannot store the rollouts of a job: trying again with the next ones", "error", err)
		return
	}
	r.mu.Lock()
	r.uploaded = changes
	r.mu.Unlock()
}
