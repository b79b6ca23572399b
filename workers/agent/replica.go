package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// drainTimeout is how long a replica that is stopped may take to finish its requests.
const drainTimeout = 20 * time.Second

// A replica is a loaded or loading replica of a deployment. Replicas of one model share the model's
// files, but each replica loads the model into the memory of its own allocation, so that no replica
// can crash another.
type replica struct {
	agent      *Agent
	assignment protocol.ServeAssignment
	log        *slog.Logger
	ctx        context.Context // context of the requests in progress
	end        context.CancelFunc

	accepting context.Context // done when the replica must neither load the model nor accept requests any more
	stop      context.CancelFunc

	mu     sync.Mutex
	phase  string
	reason string
	// preempted reports that the replica failed because a device failed, not because of an error of
	// its own
	preempted bool
	loaded
	active  sync.WaitGroup
	load    protocol.Load // only Active and Slots are set; the rates are derived from counted
	since   time.Time     // when counted was last reset
	counted struct{ requests, completed, promptTokens, tokens int64 }

	// For a speech model, slots has an element for each recording in progress, and queue has one
	// for each recording in progress or waiting.
	slots, queue chan struct{}

	addons addons
}

func newReplica(a *Agent, life context.Context, assignment protocol.ServeAssignment) *replica {
	r := &replica{agent: a, assignment: assignment, log: a.log.With("replica", assignment.ID()),
		phase: domain.ReplicaDownloading,
		since: time.Now()}
	r.ctx, r.end = context.WithCancel(life)
	r.accepting, r.stop = context.WithCancel(r.ctx)
	r.addons.open(r)
	return r
}

// state returns the replica for the next heartbeat, and resets the counters of its rates.
func (r *replica) state() protocol.Replica {
	addons := r.addons.state()
	r.mu.Lock()
	defer r.mu.Unlock()
	load := r.load
	load.Queued = max(0, load.Active-load.Slots)
	load.Active -= load.Queued
	now := time.Now()
	if seconds := now.Sub(r.since).Seconds(); seconds > 0 {
		load.RequestsPerSecond = float64(r.counted.requests) / seconds
		load.CompletedPerSecond = float64(r.counted.completed) / seconds
		load.PromptTokensPerSecond = float64(r.counted.promptTokens) / seconds
		load.TokensPerSecond = float64(r.counted.tokens) / seconds
	}
	r.since = now
	r.counted.requests, r.counted.completed, r.counted.promptTokens, r.counted.tokens = 0, 0, 0, 0
	return protocol.Replica{Deployment: r.assignment.Deployment, Replica: r.assignment.Replica,
		CreateTime: r.assignment.CreateTime,
		State:      r.phase, Reason: r.reason, Preempted: r.preempted, Load: load, Addons: addons}
}

// setPhase records the state of the replica. A failed replica stays failed.
func (r *replica) setPhase(phase, reason string) {
	r.mu.Lock()
	if r.phase != protocol.ReplicaFailed {
		r.phase, r.reason = phase, reason
	}
	r.mu.Unlock()
	r.agent.requestHeartbeat()
}

// loseDevice ends the replica because its device has failed. Its requests end at once with
// errReplicaGone: what a failed device has computed may be wrong.
func (r *replica) loseDevice(err error) {
	r.log.Error("replica lost its device", "error", err)
	r.mu.Lock()
	r.preempted = true
	r.mu.Unlock()
	r.setPhase(protocol.ReplicaFailed, r.reasonOf(err))
	r.end()
}

// lostDevice reports whether a device of the replica has failed.
func (r *replica) lostDevice() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.preempted
}

// run loads the model, serves requests until the replica is stopped, and unloads the model.
func (r *replica) run() {
	defer r.addons.resident.close()
	defer r.end()
	release, err := r.open()
	defer release()
	if err != nil {
		if r.accepting.Err() == nil {
			r.log.Error("replica failed", "error", err)
			r.setPhase(protocol.ReplicaFailed, r.reasonOf(err))
		}
		return
	}
	r.log.Info("replica ready")
	r.setPhase(domain.ReplicaReady, "")
	select {
	case <-r.accepting.Done():
	case err := <-r.broken():
		r.log.Error("replica failed", "error", err)
		r.setPhase(protocol.ReplicaFailed, r.reasonOf(err))
	}
	r.close()
}

// reasonOf returns the text of err for the user, without paths of this machine.
func (r *replica) reasonOf(err error) string {
	return strings.ReplaceAll(err.Error(), r.agent.options.Dir+"/", "")
}

// open downloads the files of the model and loads the model. release releases the files and the
// devices, and is never nil.
func (r *replica) open() (release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	if err := r.requireAbility(); err != nil {
		return release, err
	}
	files := engines.ModelFiles{Speculation: r.assignment.Speculation, MemoryBytes: r.assignment.MemoryMiB << 20,
		ContextLength: r.assignment.ContextLength, LongPrompts: r.assignment.LongPrompts,
		DraftMemoryBytes: r.assignment.DraftMemoryMiB << 20, DeviceShare: r.assignment.Share.Milli}
	for _, part := range []struct {
		files *protocol.FileSet
		dir   *string
	}{{&r.assignment.Base, &files.Dir}, {r.assignment.Adapter, &files.AdapterDir}, {r.assignment.Draft, &files.DraftDir}} {
		if part.files == nil {
			continue
		}
		dir, free, err := r.agent.cache.acquire(r.accepting, *part.files)
		if err != nil {
			return release, fmt.Errorf("download the model: %w", err)
		}
		held, *part.dir = append(held, free), dir
	}
	r.setPhase(domain.ReplicaInitializing, "")
	devices, releaseDevices, err := r.acquireDevices()
	held, files.Devices = append(held, releaseDevices), devices
	if err != nil {
		return release, err
	}
	r.agent.devices.use(devices, r.assignment.ID(), r.loseDevice)
	got, done, err := r.loadWithTimeout(files)
	if err != nil {
		free := release
		release = func() { go func() { <-done; free() }() }
		return release, fmt.Errorf("load the model: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded, r.load.Slots = got, got.slots()
	r.slots, r.queue = make(chan struct{}, r.load.Slots), make(chan struct{}, (1+queuedPerSlot)*r.load.Slots)
	close(r.addons.opened)
	return release, nil
}

// close unloads the model when the requests in progress have ended. After drainTimeout, or when the
// replica has ended, it cancels these requests.
func (r *replica) close() {
	r.mu.Lock()
	r.phase = protocol.ReplicaFailed // enter admits no more requests
	r.mu.Unlock()
	drained := make(chan struct{})
	r.agent.work.Go(func() {
		r.active.Wait()
		close(drained)
	})
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-drained:
	case <-timeout.C:
	case <-r.ctx.Done():
	}
	r.end()
	<-drained
	if err := r.loaded.close(); err != nil {
		r.log.Warn("model not unloaded", "error", err)
	}
}

// enter admits a request, or returns why the replica cannot serve it. The caller calls leave when
// the request has ended.
func (r *replica) enter() (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.accepting.Err() != nil || r.phase != domain.ReplicaReady {
		return nil, errReplicaGone
	}
	r.active.Add(1)
	r.load.Active++
	r.counted.requests++
	return func() {
		r.mu.Lock()
		r.load.Active--
		r.counted.completed++
		r.mu.Unlock()
		r.active.Done()
	}, nil
}

// use runs work with a context that is canceled when ctx is done or the replica ends. It returns an
// error if the engine panics, and errReplicaGone if a device has failed, even if work has succeeded.
func (r *replica) use(ctx context.Context, work func(context.Context) error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			r.log.Error("the engine panicked", "cause", cause)
			err = domain.Errorf(domain.Internal, "the engine panicked during the request")
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	err = work(ctx)
	if r.lostDevice() || err != nil && r.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errReplicaGone
	}
	return err
}

// complete generates one completion, until ctx is done or the replica ends.
func (r *replica) complete(ctx context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	return r.useModel(ctx, func(ctx context.Context, model engines.Model) (engines.Usage, error) {
		done, err := r.addons.resident.use(ctx, req.Addon)
		if err != nil {
			return engines.Usage{}, err
		}
		defer done()
		if err := r.readImages(ctx, model, &req); err != nil {
			return engines.Usage{}, err
		}
		return model.Complete(ctx, req, emit)
	})
}

// embed computes one embedding and passes it to emit.
func (r *replica) embed(ctx context.Context, req engines.EmbeddingRequest,
	emit func(engines.Embedding) error) (engines.Usage, error) {
	return r.useModel(ctx, func(ctx context.Context, model engines.Model) (engines.Usage, error) {
		embedder, ok := model.(engines.Embedder)
		if !ok {
			return engines.Usage{}, engines.EmbeddingsError("the engine " + r.agent.options.Engine.Name +
				" of its node does not support them: use a node with another engine")
		}
		done, err := r.addons.resident.use(ctx, req.Addon)
		if err != nil {
			return engines.Usage{}, err
		}
		defer done()
		embedding, usage, err := embedder.Embed(ctx, req)
		if err != nil {
			return usage, err
		}
		return usage, emit(embedding)
	})
}

// useModel runs work with the text model until ctx is done or the replica ends, and counts its
// tokens.
func (r *replica) useModel(ctx context.Context,
	work func(context.Context, engines.Model) (engines.Usage, error)) (usage engines.Usage, err error) {
	if r.assignment.Speech != nil {
		return usage, errModelKind
	}
	leave, err := r.enter()
	if err != nil {
		return usage, err
	}
	defer leave()
	err = r.use(ctx, func(ctx context.Context) (err error) {
		usage, err = work(ctx, r.model)
		return err
	})
	r.mu.Lock()
	r.counted.promptTokens += int64(usage.PromptTokens)
	r.counted.tokens += int64(usage.CompletionTokens)
	r.mu.Unlock()
	return usage, err
}

var errReplicaGone = &domain.Error{Code: domain.Unavailable, Reason: engines.ReplicaGone,
	Message: "the replica does not serve requests on this node: send the request to another replica"}

// errModelKind is the error for a request that does not match the kind of the model. The gateway
// does not send such requests.
var errModelKind = domain.Errorf(domain.FailedPrecondition,
	"the request does not match the kind of the model: speech models transcribe recordings, and "+
		"other models complete prompts")
