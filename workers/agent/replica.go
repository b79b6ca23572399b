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

// drainTimeout is the time in which a replica that is stopped finishes its requests.
const drainTimeout = 20 * time.Second

// A replica is a loaded or loading replica of a deployment. Replicas of one model share its files but
// not its memory: each has its own allocation, and none can crash another.
type replica struct {
	agent *Agent
	order protocol.ServeAssignment
	log   *slog.Logger
	ctx   context.Context // of its requests
	end   context.CancelFunc

	accepting context.Context // of loading, and of new requests
	stop      context.CancelFunc

	mu     sync.Mutex
	phase  string
	reason string
	loaded
	active  sync.WaitGroup
	load    protocol.Load // Active and Slots; rates are derived from counted
	since   time.Time     // start of counted
	counted struct{ requests, promptTokens, tokens int64 }

	slots, queue chan struct{} // of a speech model: recordings in progress, and with those that wait

	addons addons
}

func newReplica(a *Agent, life context.Context, order protocol.ServeAssignment) *replica {
	r := &replica{agent: a, order: order, log: a.log.With("replica", order.ID()), phase: domain.ReplicaDownloading,
		since: time.Now()}
	r.ctx, r.end = context.WithCancel(life)
	r.accepting, r.stop = context.WithCancel(r.ctx)
	r.addons.open(r)
	return r
}

// state returns the replica for a heartbeat, and resets its rates.
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
		load.PromptTokensPerSecond = float64(r.counted.promptTokens) / seconds
		load.TokensPerSecond = float64(r.counted.tokens) / seconds
	}
	r.since, r.counted.requests, r.counted.promptTokens, r.counted.tokens = now, 0, 0, 0
	return protocol.Replica{Deployment: r.order.Deployment, Replica: r.order.Replica, CreateTime: r.order.CreateTime,
		State: r.phase, Reason: r.reason, Load: load, Addons: addons}
}

func (r *replica) setPhase(phase, reason string) {
	r.mu.Lock()
	r.phase, r.reason = phase, reason
	r.mu.Unlock()
	r.agent.requestHeartbeat()
}

// run loads the model, serves it until it is stopped, and unloads it.
func (r *replica) run() {
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

// reasonOf returns err for the user, without paths of this machine.
func (r *replica) reasonOf(err error) string {
	return strings.ReplaceAll(err.Error(), r.agent.options.Dir+"/", "")
}

// open downloads the files and loads them. release is never nil.
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
	files := engines.ModelFiles{Speculation: r.order.Speculation, MemoryBytes: r.order.MemoryMiB << 20,
		ContextLength: r.order.ContextLength}
	for _, part := range []struct {
		files *protocol.FileSet
		dir   *string
	}{{&r.order.Base, &files.Dir}, {r.order.Adapter, &files.AdapterDir}} {
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
	got, settled, err := r.loadWithTimeout(files)
	if err != nil {
		free := release
		release = func() { go func() { <-settled; free() }() }
		return release, fmt.Errorf("load the model: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded, r.load.Slots = got, got.slots()
	r.slots, r.queue = make(chan struct{}, r.load.Slots), make(chan struct{}, (1+queuedPerSlot)*r.load.Slots)
	close(r.addons.opened)
	return release, nil
}

// close waits for the requests in progress, within drainTimeout, and unloads the model.
func (r *replica) close() {
	r.mu.Lock()
	r.phase = protocol.ReplicaFailed // no more requests are admitted: see enter
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

// enter admits a request; leave must be called when it has ended.
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
		r.mu.Unlock()
		r.active.Done()
	}, nil
}

// use runs work on the loaded model; it ends when ctx or the replica does.
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
	if err != nil && r.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errReplicaGone
	}
	return err
}

// complete generates one completion; it ends when ctx or the replica does.
func (r *replica) complete(ctx context.Context, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (usage engines.Usage, err error) {
	if r.order.Speech != nil {
		return usage, errModelKind
	}
	leave, err := r.enter()
	if err != nil {
		return usage, err
	}
	defer leave()
	err = r.use(ctx, func(ctx context.Context) (err error) {
		usage, err = r.model.Complete(ctx, req, emit)
		return err
	})
	r.mu.Lock()
	r.counted.promptTokens += int64(usage.PromptTokens)
	r.counted.tokens += int64(usage.CompletionTokens)
	r.mu.Unlock()
	return usage, err
}

var errReplicaGone = &domain.Error{Code: domain.Unavailable, Reason: "REPLICA_GONE", Message: "the replica does not " +
	"run on this node: send the request to another replica"}

// The gateway sends requests that match the kind of the model; other clients may not.
var errModelKind = domain.Errorf(domain.FailedPrecondition,
	"the request does not match the kind of the model: speech models transcribe, all others complete")
