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
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// maxLine is the most bytes of one message of the script.
const maxLine = 64 << 20

// A training is one run of the script.
type training struct {
	order    engines.TrainRequest
	written  string // folder that the script may write
	watch    engines.TrainWatcher
	grace    time.Duration
	program  *sandbox.Process
	listener *net.UnixListener
}

func (r *training) listen(path string) (err error) {
	r.listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	return err
}

// close ends the script, if it still runs.
func (r *training) close() {
	_ = r.listener.Close() // nobody connects any more
	if r.program != nil {
		gone, cancel := context.WithCancel(context.Background())
		cancel() // it has said its last word: nothing to wait for
		r.program.Stop(gone, 0)
	}
}

// follow hears the script to its end. When ctx is done, the script is asked to
// save a checkpoint and to stop.
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
			return result, fmt.Errorf("the trainer's script sent what is no message: %w", err)
		}
		if m.Type == saysResult {
			return r.result(m)
		}
		reply, err := r.hear(ctx, m)
		if err != nil {
			return result, err
		}
		if reply == nil {
			continue
		}
		if err := json.NewEncoder(conn).Encode(reply); err != nil {
			break // it has ended, and says why below
		}
	}
	return result, r.ended(ctx, lines.Err())
}

// accept waits for the script to connect. Of one that has ended meanwhile, what
// it said is still heard: its connection comes before ours, on which nothing is
// said.
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
			_ = r.listener.SetDeadline(time.Unix(1, 0)) // which ends Accept, too
			return
		}
		_ = ours.Close()
	}()
	conn, err := r.listener.Accept()
	if err != nil {
		return nil, r.ended(ctx, nil)
	}
	return conn, nil
}

// ended is why a script ended that had told no result.
func (r *training) ended(ctx context.Context, broken error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	select {
	case <-r.program.Done():
	case <-time.After(r.grace): // it closed the socket and goes on
		return fmt.Errorf("the trainer's script says nothing any more%s", r.program.LastOutput())
	}
	if err := errors.Join(broken, r.program.Err()); err != nil {
		return fmt.Errorf("the trainer's script failed: %w", err)
	}
	return fmt.Errorf("the trainer's script ended without a result%s", r.program.LastOutput())
}

// hear does what a message asks for. An error ends the training.
func (r *training) hear(ctx context.Context, m message) (any, error) {
	switch m.Type {
	case saysStep:
		if m.Row == nil {
			return nil, errors.New("the trainer's script told of a step without its row")
		}
		r.watch.Step(*m.Row)
		return nil, nil
	case saysCheckpoint:
		dir, err := r.take(m.Dir, "checkpoint")
		if err != nil {
			return nil, err
		}
		err = r.watch.Checkpoint(context.WithoutCancel(ctx), m.Step, dir)
		if err := errors.Join(err, os.RemoveAll(dir)); err != nil {
			return nil, fmt.Errorf("checkpoint of step %d: %w", m.Step, err)
		}
		return body{}, nil
	case saysScore:
		if r.order.Evaluation == nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "evaluator: the job has none that could score its answers")
		}
		scores, err := r.order.Evaluation.Score(ctx, m.Rows)
		if err != nil {
			return nil, err
		}
		return body{"scores": scoresOf(scores)}, nil
	case saysFault:
		return nil, m.fault()
	}
	return nil, fmt.Errorf("the trainer's script said %q, which means nothing", m.Type)
}

// result is what a message of it says.
func (r *training) result(m message) (engines.TrainResult, error) {
	if m.Result == nil {
		return engines.TrainResult{}, errors.New("the trainer's script told of an empty result")
	}
	dir, err := r.take(m.Result.Dir, "result")
	if err != nil {
		return engines.TrainResult{}, err
	}
	return engines.TrainResult{Dir: dir, Adapter: m.Result.Adapter, Steps: m.Result.Steps, Tokens: m.Result.Tokens,
		StoppedEarly: m.Result.StoppedEarly, Reason: m.Result.Reason, Values: m.Result.Values}, nil
}

// take moves what the script wrote out of its reach, and refuses a folder that is not its own.
func (r *training) take(dir, name string) (string, error) {
	below, err := filepath.Rel(r.written, dir)
	if err != nil || !filepath.IsLocal(below) {
		return "", errors.New("the trainer's script told of a folder outside of its own")
	}
	to := filepath.Join(r.order.WorkDir, name)
	if err := sandbox.MoveFiles(r.written, below, to); err != nil {
		return "", fmt.Errorf("what the trainer's script wrote cannot be taken: %w", err)
	}
	return to, nil
}
