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
	"anneal/tracing"
	"anneal/workers/protocol"
)

// drainTimeout is how long a replica that is stopped may take to finish the requests in progress.
const drainTimeout = 20 * time.Second

// A replica is one replica of a deployment on this node. Replicas of the same model share its
// files, but each loads the model into the memory of its own allocation, so that a crash of one
// does not affect the others.
type replica struct {
	agent      *Agent
	assignment protocol.ServeAssignment
	log        *slog.Logger
	ctx        context.Context // context of the requests in progress
	end        context.CancelFunc

	accepting context.Context // context that is done when the replica must not load its model or accept requests any more
	stop      context.CancelFunc

	mu     sync.Mutex
	phase  string
	reason string
	// preempted reports that the replica failed because of a device of the node. Such a failure
	// does not count toward the deployment's failures.
	preempted bool
	loaded
	active  sync.WaitGroup
	load    protocol.Load // current load; its rates stay zero, and the method state computes them from counted
	since   time.Time     // when the counters in counted were last reset
	counted struct{ requests, completed, promptTokens, tokens int64 }

	// Limits of a speech model: slots has an element for each audio file that is being transcribed,
	// and queue one for each that is being transcribed or waits.
	slots, queue chan struct{}

	addons addons
	engine engineLoad
	span   tracing.Span // span of starting the replica
}

func newReplica(a *Agent, life context.Context, assignment protocol.ServeAssignment) *replica {
	life, span := startReplicaSpan(life, assignment)
	r := &replica{span: span, agent: a, assignment: assignment, log: a.log.With("replica", assignment.ID()),
		phase: domain.ReplicaDownloading,
		since: time.Now()}
	r.ctx, r.end = context.WithCancel(life)
	r.accepting, r.stop = context.WithCancel(r.ctx)
	r.addons.open(r)
	return r
}

// state returns the state of the replica for the next heartbeat, and resets the counters for its
// rates.
func (r *replica) state() protocol.Replica {
	addons, loadTime := r.addons.state(), r.addons.resident.averageLoad()
	r.mu.Lock()
	defer r.mu.Unlock()
	load := r.load
	load.AddonLoadTime, load.Engine = loadTime, r.engine.latest(time.Now())
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

// setPhase sets the phase of the replica and its reason. A failed replica stays failed.
func (r *replica) setPhase(phase, reason string) {
	r.mu.Lock()
	if r.phase != protocol.ReplicaFailed {
		r.phase, r.reason = phase, reason
	}
	r.mu.Unlock()
	r.agent.requestHeartbeat()
}

// loseDevice ends the replica after one of its devices failed. Requests in progress end immediately
// with errReplicaGone, because the results of a failed device may be wrong.
func (r *replica) loseDevice(err error) {
	r.log.Error("stopping a replica, because a device that it uses has failed", "error", err)
	r.mu.Lock()
	r.preempted = true
	r.mu.Unlock()
	r.setPhase(protocol.ReplicaFailed, r.reasonOf(err))
	r.end()
}

// lostDevice reports whether one of the replica's devices has failed.
func (r *replica) lostDevice() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.preempted
}

// run loads the model, serves requests until the replica is stopped, and then unloads the model.
func (r *replica) run() {
	defer r.addons.resident.close()
	defer r.end()
	release, err := r.open()
	r.span.End(err)
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

// reasonOf returns the text of err for the user, with paths of this machine removed.
func (r *replica) reasonOf(err error) string {
	return strings.ReplaceAll(err.Error(), r.agent.options.Dir+"/", "")
}

// open downloads the model's files and loads the model. release releases the files and the devices;
// it is never nil.
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

// close waits until the requests in progress have ended, and then unloads the model. It cancels the
// requests after drainTimeout, or at once when the replica has ended.
func (r *replica) close() {
	r.mu.Lock()
	r.phase = protocol.ReplicaFailed // from now on enter accepts no requests
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
		r.log.Warn("cannot unload the model of a replica: its memory may stay in use until the agent is "+
			"restarted", "error", err)
	}
}

// enter registers a request, or returns an error when the replica cannot serve it. The caller calls
// leave when the request has ended.
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

// use calls work with a context that is canceled when ctx is done or the replica ends. It returns
// an error when the engine panics. When a device has failed, it returns errReplicaGone even if work
// succeeded.
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

// complete generates one completion and passes its chunks on as they are generated, until ctx is
// done or the replica ends.
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
				" of its node cannot compute embeddings: deploy the model to nodes with another engine")
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

// useModel calls work with the replica's text model until ctx is done or the replica ends, and
// counts the tokens.
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
		usage, err = callEngine(ctx, r, func(ctx context.Context) (engines.Usage, error) { return work(ctx, r.model) })
		return err
	})
	r.mu.Lock()
	r.counted.promptTokens += int64(usage.PromptTokens)
	r.counted.tokens += int64(usage.CompletionTokens)
	r.mu.Unlock()
	return usage, err
}

var errReplicaGone = &domain.Error{Code: domain.Unavailable, Reason: engines.ReplicaGone,
	Message: "the replica is not running on this node: send the request to another replica"}

// errModelKind is the error for a request that does not match the kind of the model, such as a
// completion from a speech model. The gateway does not send such requests.
var errModelKind = domain.Errorf(domain.FailedPrecondition,
	"the request does not match the kind of the model: speech models transcribe recordings, and "+
		"other models complete prompts")
