package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// checkpointID returns the ID of a checkpoint of a run, which is part of the keys of its files. It
// contains the attempt, so that attempts never write the same files.
func (r *trainingRun) checkpointID(kind string, seq int64) string {
	return fmt.Sprintf("%d-%d-%s", r.service.assignment.Attempt, seq, kind)
}

// save writes a checkpoint that an operation requests to the local disk. The method send uploads it
// before it sends the result.
func (r *trainingRun) save(kind string, save engines.TrainSave, result *runResult) error {
	dir, err := r.write(kind)
	if err != nil {
		return err
	}
	result.dir = dir
	result.Saved = &protocol.SavedTraining{Checkpoint: r.checkpointID(kind, result.Seq), Kind: kind, Save: save,
		Steps: r.run.Steps()}
	return nil
}

// write writes a checkpoint of the kind to a new local directory.
func (r *trainingRun) write(kind string) (dir string, err error) {
	if dir, err = r.service.tempDir(kind); err != nil {
		return "", err
	}
	if kind == domain.TrainingCheckpointSampler {
		err = r.run.Export(context.WithoutCancel(r.ctx), dir)
		if err == nil {
			err = r.service.nameBase(dir)
		}
	} else {
		var file *os.File
		if file, err = os.Create(filepath.Join(dir, protocol.TrainingState)); err == nil {
			err = errors.Join(r.run.Save(context.WithoutCancel(r.ctx), file), file.Close())
		}
	}
	if err != nil {
		return "", errors.Join(diskError(err), os.RemoveAll(dir))
	}
	return dir, nil
}

// checkpoint stores a recovery checkpoint in the background, if operations were executed since the
// newest one. While another one is being stored, it returns at once, or, if last is true, waits.
func (r *trainingRun) checkpoint(last bool) {
	r.saveAt = time.Now().Add(r.service.agent.options.RecoveryInterval)
	select {
	case r.saving <- struct{}{}:
	default:
		if !last {
			return
		}
		select {
		case r.saving <- struct{}{}:
		case <-r.service.life.Done():
			return
		}
	}
	r.mu.Lock()
	failed := r.failed
	r.failed = false
	r.mu.Unlock()
	if r.seq == r.saved && !failed || r.seq == 0 {
		<-r.saving
		return
	}
	kind := domain.TrainingCheckpointRecovery
	dir, err := recoverPanic(func() (string, error) { return r.write(kind) })
	if err != nil {
		r.log.Warn("cannot write a recovery checkpoint: trying again after the recovery interval", "error", err)
		<-r.saving
		return
	}
	seq, saved := r.seq, protocol.SavedTraining{Checkpoint: r.checkpointID(kind, r.seq), Kind: kind, Steps: r.run.Steps()}
	r.saved = seq
	r.saves.Go(func() {
		defer func() { <-r.saving }()
		defer os.RemoveAll(dir)
		if err := r.store(seq, saved, dir); err != nil {
			if r.service.life.Err() == nil && !errors.Is(err, errRunEnded) {
				r.log.Warn("cannot store a recovery checkpoint: trying again after the recovery interval", "seq", seq,
					"error", err)
			}
			r.mu.Lock()
			r.failed = true
			r.mu.Unlock()
		}
	})
}

// store uploads a recovery checkpoint. It reports the checkpoint when the results of all operations
// in it are acknowledged, because the coordinator then deletes these operations.
func (r *trainingRun) store(seq int64, saved protocol.SavedTraining, dir string) error {
	s := r.service
	if _, err := s.upload(s.life, r.assigned.ID, &saved, dir); err != nil {
		return err
	}
	for {
		acks := r.acks.next()
		r.mu.Lock()
		acked, lost := r.acked, r.lost
		r.mu.Unlock()
		if acked >= seq {
			break
		}
		if lost { // its operation is executed again
			return errors.New("the control plane has not stored the result of an operation")
		}
		select {
		case <-acks:
		case <-s.life.Done():
			return context.Cause(s.life)
		}
	}
	var reply protocol.TrainingReply
	return s.call(s.life, protocol.TrainingCheckpoints, protocol.TrainingCheckpoint{Version: protocol.Version,
		TrainingAttempt: s.id(), Run: r.assigned.ID, Seq: seq, Saved: saved}, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
}

// upload uploads the files of a checkpoint, records them in saved, and returns the prefix of their
// keys in the store.
func (s *trainingService) upload(ctx context.Context, run string, saved *protocol.SavedTraining, dir string) (
	prefix string, err error,
) {
	reply, err := storeFiles(ctx, s.attempt, protocol.SignRequest{For: protocol.ForTraining, Run: run,
		Checkpoint: saved.Checkpoint}, dir)
	saved.Sizes, saved.Sums = reply.sizes, reply.sums
	return reply.prefix, err
}

// enqueue passes a result to the goroutine that sends results.
func (r *trainingRun) enqueue(result runResult) {
	result.Version, result.TrainingAttempt, result.Lane = protocol.Version, r.service.id(), r.assigned.ID
	select {
	case r.results <- result:
	case <-r.service.life.Done():
	}
}

// send sends results in order until the channel is closed.
func (r *trainingRun) send() {
	for result := range r.results {
		stored := !result.send || r.deliver(&result)
		r.mu.Lock()
		if result.Seq > 0 {
			r.pending--
		}
		if r.lost = r.lost || !stored; !r.lost {
			r.acked = max(r.acked, result.Seq)
		}
		r.mu.Unlock()
		r.acks.fire()
	}
}

// deliver sends one result until the coordinator has it, and reports whether it has.
func (r *trainingRun) deliver(result *runResult) bool {
	s := r.service
	if result.dir != "" {
		keep := false
		defer func() {
			if !keep {
				_ = os.RemoveAll(result.dir) // otherwise it is removed together with the directory of the attempt
			}
		}()
		prefix, err := s.upload(s.life, r.assigned.ID, result.Saved, result.dir)
		if err != nil {
			if s.life.Err() != nil {
				return false
			}
			result.Saved, result.Error = nil, s.errorOf(err)
		} else if result.Saved.Kind == domain.TrainingCheckpointSampler {
			keep = s.samplers.keep(prefix, result.dir)
		}
	}
	err := s.sendResult(&result.TrainingResult)
	if err != nil && s.life.Err() == nil {
		if !errors.Is(err, errRunEnded) {
			s.stop(fmt.Errorf("send a result of the training run %s: %w", r.assigned.ID, err))
		}
		r.end(err)
	}
	return err == nil
}

// sendResult sends a result until the coordinator has acknowledged it. It uploads a long result
// first.
func (s *trainingService) sendResult(result *protocol.TrainingResult) error {
	if len(result.Body) > protocol.MaxTrainingInline {
		if err := s.uploadResult(result); err != nil {
			return err
		}
	}
	var reply protocol.TrainingReply
	return s.call(s.life, protocol.TrainingResults, result, &reply,
		func() (string, string) { return reply.Outcome, reply.Message })
}

func (s *trainingService) uploadResult(result *protocol.TrainingResult) error {
	size := int64(len(result.Body))
	number, name := s.uploads.next(), protocol.TrainingResultFile
	urls, err := s.sign(s.life, protocol.SignRequest{Version: protocol.Version, Job: s.assignment.Job,
		Attempt: s.assignment.Attempt, CreateTime: s.assignment.CreateTime, For: protocol.ForTrainingResult,
		Upload: number, Sizes: map[string]int64{name: size}})
	if err != nil {
		return err
	}
	body := result.Body
	err = retry(s.life, time.Time{}, func() error {
		return s.agent.files.send(s.life, name, bytes.NewReader(body), urls.URLs[name], size)
	})
	result.Body, result.Upload = nil, number
	return err
}
