package torch

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// maxLine is the maximum size of a message of the script, in bytes.
const maxLine = 64 << 20

// A training is one run of the training script.
type training struct {
	request  engines.TrainRequest
	own      string // directory of the script, its request and its socket
	writable string // directory that the script may write
	watch    engines.TrainWatcher
	grace    time.Duration
	program  *sandbox.Process
	listener *net.UnixListener
	killed   atomic.Bool // killAfter has killed the script
}

func (r *training) listen(path string) (err error) {
	r.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	return err
}

// close kills the script if it is still running, and removes its files except writable.
func (r *training) close() {
	if r.listener != nil {
		_ = r.listener.Close()
	}
	r.kill()
	_ = os.RemoveAll(r.own) // at worst, temporary files remain
}

// kill kills the script if it is running.
func (r *training) kill() {
	if r.program == nil {
		return
	}
	done, cancel := context.WithCancel(context.Background())
	cancel() // kills the script without a grace period
	r.program.Stop(done, 0)
}

// killAfter kills the script if it does not exit within wait, or before ctx is done.
func (r *training) killAfter(ctx context.Context, wait time.Duration) {
	select {
	case <-r.program.Done():
	case <-ctx.Done():
	case <-time.After(wait):
		r.killed.Store(true)
		r.kill()
	}
}

// follow handles the messages of the script, and returns the result of the training. If the script
// exits without a result, it returns an error. When ctx is done, it requests the script to save a
// checkpoint and to exit.
func (r *training) follow(ctx context.Context) (result engines.TrainResult, err error) {
	conn, err := r.accept(ctx)
	if err != nil {
		return result, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { r.program.Stop(context.Background(), r.grace) })()
	lines := bufio.NewScanner(conn)
	lines.Buffer(nil, maxLine)
	lines.Split(process.ScanWholeLines)
	for lines.Scan() {
		var m message
		if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
			return result, fmt.Errorf("the training script sent an invalid message: %w", err)
		}
		if m.Type == resultMessage {
			return r.result(m)
		}
		reply, err := r.handle(ctx, m)
		if err != nil {
			return result, err
		}
		if reply == nil {
			continue
		}
		if err := json.NewEncoder(conn).Encode(reply); err != nil {
			break // the script has exited, and exitError returns the reason
		}
	}
	return result, r.exitError(ctx, lines.Err())
}

// accept waits until the script connects, and returns the connection. When the script exits, accept
// itself connects to the socket, so that Listener.Accept does not block forever: the caller then
// reads nothing and ends the training. If the script has connected before it exited, its connection
// comes first.
func (r *training) accept(ctx context.Context) (net.Conn, error) {
	wait, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-r.program.Done():
		case <-wait.Done():
		}
		ours, err := net.Dial("unix", r.listener.Addr().String())
		if err != nil {
			_ = r.listener.SetDeadline(time.Unix(1, 0)) // ends Listener.Accept with an error
			return
		}
		_ = ours.Close()
	}()
	conn, err := r.listener.Accept()
	if err != nil {
		return nil, r.exitError(ctx, nil)
	}
	return conn, nil
}

// exitError returns the error of a script that has ended without a result. readErr is the error of
// reading from the socket.
func (r *training) exitError(ctx context.Context, readErr error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-r.program.Done():
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(r.grace): // the script has closed its socket, but has not exited
		return fmt.Errorf("the training script closed its socket, but sent no result and did not exit within %s: resume "+
			"the job, and report this error to the operator if it happens again%s", r.grace, r.program.LastOutput())
	}
	if err := errors.Join(readErr, r.program.Err()); err != nil {
		return fmt.Errorf("the training script failed: %w", err)
	}
	return fmt.Errorf("the training script ended without a result%s", r.program.LastOutput())
}

// handle processes a message of the script, and returns the reply; nil for none. After an error,
// the training ends.
func (r *training) handle(ctx context.Context, m message) (any, error) {
	switch m.Type {
	case stepMessage:
		if m.Row == nil {
			return nil, errors.New("the training script reported a step without metrics")
		}
		r.watch.Step(*m.Row)
		return nil, nil
	case checkpointMessage:
		dir, err := r.take(m.Dir, "checkpoint")
		if err != nil {
			return nil, err
		}
		err = r.watch.Checkpoint(context.WithoutCancel(ctx), m.Step, dir)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return nil, fmt.Errorf("checkpoint of step %d: %w", m.Step, err)
		}
		return body{}, nil
	case scoreMessage:
		if r.request.Evaluation == nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "evaluator: the training script requested scores, "+
				"but the job has no evaluator: create a job with an evaluator")
		}
		scores, err := r.request.Evaluation.Score(ctx, m.Rows)
		if err != nil {
			return nil, err
		}
		return body{"scores": scoresOf(scores)}, r.record(m, scores)
	case errorMessage:
		return nil, m.err()
	}
	return nil, fmt.Errorf("the training script sent a message of unknown type %q", m.Type)
}

// result converts a message of the type resultMessage to the result of the training.
func (r *training) result(m message) (engines.TrainResult, error) {
	if m.Result == nil {
		return engines.TrainResult{}, errors.New("the training script sent an empty result")
	}
	dir, err := r.take(m.Result.Dir, "result")
	if err != nil {
		return engines.TrainResult{}, err
	}
	return engines.TrainResult{
		Dir: dir, Adapter: m.Result.Adapter, Steps: m.Result.Steps, Tokens: m.Result.Tokens,
		StoppedEarly: m.Result.StoppedEarly, Reason: m.Result.Reason, Values: m.Result.Values,
	}, nil
}

// take moves dir, a directory that the script has written, to a directory that the script cannot
// change, and returns the new path. It returns an error if dir is outside of r.writable.
func (r *training) take(dir, name string) (string, error) {
	below, err := filepath.Rel(r.writable, dir)
	if err != nil || !filepath.IsLocal(below) {
		return "", fmt.Errorf("the training script sent the directory %q, which is outside of %s", dir, r.writable)
	}
	to := filepath.Join(r.request.WorkDir, name)
	if err := sandbox.MoveFiles(r.writable, below, to); err != nil {
		return "", fmt.Errorf("move the trainer's files: %w", err)
	}
	return to, nil
}
