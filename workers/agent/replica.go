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

// drainWithin is how long a replica that is not wanted any more may go on with
// the answers that it has begun.
const drainWithin = 20 * time.Second

// A replica of a deployment, loaded or on its way. Replicas of one model share
// its files but not its memory: each has what was set aside for it, and none
// can break another.
type replica struct {
	agent *Agent
	order protocol.ServeAssignment
	log   *slog.Logger
	ctx   context.Context // what it answers ends with it
	end   context.CancelFunc
	begin context.Context // loading ends with it, and new answers
	stop  context.CancelFunc

	mu     sync.Mutex
	phase  string
	reason string
	loaded
	active  sync.WaitGroup
	load    protocol.Load // Active and Slots; the rest is counted below
	since   time.Time     // when counting began
	counted struct{ requests, promptTokens, tokens int64 }

	turns, line chan struct{} // those that a listener listens to, and with those that wait

	addons addons
}

func newReplica(a *Agent, life context.Context, order protocol.ServeAssignment) *replica {
	r := &replica{agent: a, order: order, log: a.log.With("replica", order.ID()), phase: domain.ReplicaDownloading, since: time.Now()}
	r.ctx, r.end = context.WithCancel(life)
	r.begin, r.stop = context.WithCancel(r.ctx)
	r.addons.open(r)
	return r
}

// state is the replica in a beat. Its rates begin anew.
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
	return protocol.Replica{Deployment: r.order.Deployment, Replica: r.order.Replica, CreateTime: r.order.CreateTime, State: r.phase, Reason: r.reason, Load: load, Addons: addons}
}

func (r *replica) enter(state, reason string) {
	r.mu.Lock()
	r.phase, r.reason = state, reason
	r.mu.Unlock()
	r.agent.beatSoon()
}

// run loads the model, lets it answer until it is stopped, and unloads it.
func (r *replica) run() {
	defer r.end()
	release, err := r.open()
	defer release()
	if err != nil {
		if r.begin.Err() == nil {
			r.log.Error("replica fails", "error", err)
			r.enter(protocol.ReplicaFailed, r.told(err))
		}
		return
	}
	r.log.Info("replica is ready")
	r.enter(domain.ReplicaReady, "")
	select {
	case <-r.begin.Done():
	case why := <-r.broken():
		r.log.Error("replica breaks", "error", why)
		r.enter(protocol.ReplicaFailed, r.told(why))
	}
	r.close()
}

// told is why the replica fails, without paths of this machine.
func (r *replica) told(err error) string {
	return strings.ReplaceAll(err.Error(), r.agent.options.Dir+"/", "")
}

// open fetches the files and loads them. release is never nil.
func (r *replica) open() (release func(), err error) {
	var held []func()
	release = func() {
		for _, free := range held {
			free()
		}
	}
	if err := r.able(); err != nil {
		return release, err
	}
	files := engines.ModelFiles{Guessing: r.order.Speculation, MemoryBytes: r.order.MemoryMiB << 20, ContextLength: r.order.ContextLength}
	for _, part := range []struct {
		folder *protocol.FileSet
		dir    *string
	}{{&r.order.Base, &files.Dir}, {r.order.Adapter, &files.AdapterDir}} {
		if part.folder == nil {
			continue
		}
		dir, free, err := r.agent.cache.acquire(r.begin, *part.folder)
		if err != nil {
			return release, fmt.Errorf("fetching the model: %w", err)
		}
		held, *part.dir = append(held, free), dir
	}
	r.enter(domain.ReplicaInitializing, "")
	given, back, err := r.takeDevices()
	held, files.Devices = append(held, back), given
	if err != nil {
		return release, err
	}
	got, settled, err := r.loadWithin(files)
	if err != nil {
		free := release
		release = func() { go func() { <-settled; free() }() }
		return release, fmt.Errorf("loading the model: %w", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.loaded, r.load.Slots = got, got.slots()
	r.turns, r.line = make(chan struct{}, r.load.Slots), make(chan struct{}, (1+waitingPerSlot)*r.load.Slots)
	close(r.addons.opened)
	return release, nil
}

// close lets what is being answered end, within its bound, and unloads.
func (r *replica) close() {
	r.mu.Lock()
	r.phase = protocol.ReplicaFailed // nobody joins any more: see join
	r.mu.Unlock()
	drained := make(chan struct{})
	r.agent.work.Go(func() {
		r.active.Wait()
		close(drained)
	})
	bound := time.NewTimer(drainWithin)
	defer bound.Stop()
	select {
	case <-drained:
	case <-bound.C:
	case <-r.ctx.Done():
	}
	r.end()
	<-drained
	if err := r.loaded.close(); err != nil {
		r.log.Warn("unloading the model", "error", err)
	}
}

// join admits a request; leave must be called when it is answered.
func (r *replica) join() (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.begin.Err() != nil || r.phase != domain.ReplicaReady {
		return nil, errNotHere
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

// during works with what is loaded; the work ends when ctx or the replica does.
func (r *replica) during(ctx context.Context, work func(context.Context) error) (err error) {
	defer func() {
		if broke := recover(); broke != nil {
			r.log.Error("the engine broke down", "cause", broke)
			err = domain.Errorf(domain.Internal, "the engine broke down while answering")
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	err = work(ctx)
	if err != nil && r.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errNotHere
	}
	return err
}

// complete generates one continuation; it ends when ctx or the replica does.
func (r *replica) complete(ctx context.Context, req engines.CompletionRequest, emit func(engines.Chunk) error) (usage engines.Usage, err error) {
	if r.order.Speech != nil {
		return usage, errOtherKind
	}
	leave, err := r.join()
	if err != nil {
		return usage, err
	}
	defer leave()
	err = r.during(ctx, func(ctx context.Context) (err error) {
		usage, err = r.model.Complete(ctx, req, emit)
		return err
	})
	r.mu.Lock()
	r.counted.promptTokens += int64(usage.PromptTokens)
	r.counted.tokens += int64(usage.CompletionTokens)
	r.mu.Unlock()
	return usage, err
}

var errNotHere = &domain.Error{Code: domain.Unavailable, Reason: "REPLICA_GONE", Message: "the replica does not run there (any more): send the request to another"}

// The gateway asks by what the deployment's model is; this is for one that does not.
var errOtherKind = domain.Errorf(domain.FailedPrecondition, "the replica's model is of another kind: speech models transcribe, all others complete")
