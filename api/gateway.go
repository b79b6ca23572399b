package api

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections/live"
)

// askAgain is how often a request that waits for a replica counts as a new one:
// what it waits for must not be put to sleep meanwhile.
const askAgain = time.Second

// maxTries is how many replicas one question may be put to.
const maxTries = 3

// An inquiry goes to the replicas of a deployment, until one answers it. The
// session leads to the same replica while it lives; without one the least
// loaded is chosen.
type inquiry struct {
	to      domain.Name // the deployment
	session string
	addon   string
	choose  chooseAddon // another addon when that one is unloaded; nil when it was named
	// ask puts the question to a replica. begun tells that something of its
	// answer is with the caller, so that no other may be asked.
	ask func(ctx context.Context, replica domain.Replica, addon string) (begun bool, err error)
}

// generate makes one continuation on a replica of the deployment.
func (c *call) generate(ctx context.Context, to target, session string, req engines.CompletionRequest, emit func(engines.Chunk) error) (usage engines.Usage, at seat, err error) {
	at, err = c.put(ctx, inquiry{to.Name, session, req.Addon, to.choose, func(ctx context.Context, replica domain.Replica, addon string) (begun bool, err error) {
		req.Addon = addon
		usage, err = c.server.Replicas.Complete(ctx, to.Name, replica, req, func(chunk engines.Chunk) error {
			begun = true
			return emit(chunk)
		})
		return begun, err
	}})
	return usage, at, err
}

// put asks replicas, and tells which one it was in the end. One that fails
// before it has begun to answer is left for another one; that others were full
// is told before all else.
func (c *call) put(ctx context.Context, q inquiry) (seat, error) {
	tried, full := map[string]bool{}, error(nil)
	c.World.Live().RecordRequest(q.to, c.Time)
	for {
		ready, err := c.awaitReplicas(ctx, q.to, q.addon)
		if next, ok := c.successor(q.to, q.addon, q.choose); ok && domain.CodeOf(err) == domain.NotFound {
			q.addon, tried = next, map[string]bool{}
			continue
		}
		if err != nil {
			return seat{}, err
		}
		replica, ok := c.choose(q.to, ready, q.session, tried)
		if !ok && full != nil {
			return seat{}, full
		}
		if !ok {
			return seat{}, domain.Errorf(domain.Unavailable, "no replica of %s could be reached: try again", q.to)
		}
		tried[replica.ID] = true
		at := seat{replica.Node.ID(), c.server.busy.Of(replicaKey(q.to, replica.ID)) + 1}
		begun, err := c.try(ctx, q, replica)
		if domain.CodeOf(err) == domain.ResourceExhausted {
			full = err
		}
		if err == nil || begun || ctx.Err() != nil || !elsewhere(err) {
			return at, err
		}
		if c.server.closing.Err() != nil {
			return at, errStopping
		}
		if next, ok := c.successor(q.to, q.addon, q.choose); ok && isUnloaded(err) {
			q.addon, tried = next, map[string]bool{}
			continue
		}
		if len(tried) == maxTries {
			return at, cmp.Or(full, err)
		}
		c.Logger.Warn("a replica failed before it had answered anything", "request", c.ID, "deployment", q.to, "replica", replica.ID, "error", err)
	}
}

// errStopping tells that nothing can be waited for here any more.
var errStopping = &domain.Error{Code: domain.Unavailable, Reason: request.ReasonStopping, Message: "the server is stopping: send the request again when it is back, or to another one"}

// try asks one replica, and is counted while it lasts.
func (c *call) try(ctx context.Context, q inquiry, replica domain.Replica) (begun bool, err error) {
	leave, _ := c.server.busy.Enter(replicaKey(q.to, replica.ID), 1<<30)
	defer leave()
	begun, err = q.ask(ctx, replica, q.addon)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return begun, err
}

func replicaKey(deployment domain.Name, replica string) string {
	return string(deployment) + "#" + replica
}

// elsewhere tells whether another replica might do better.
func elsewhere(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Unavailable, domain.ResourceExhausted, domain.Internal, domain.Unknown, domain.NotFound, domain.Aborted, domain.DeadlineExceeded:
		return true
	}
	return false
}

// isUnloaded tells whether a replica does not have the addon, or the weights,
// that it was asked for.
func isUnloaded(err error) bool {
	var fault *domain.Error
	return errors.As(err, &fault) && fault.Reason == engines.AddonNotLoaded
}

// choose picks a replica that was not tried yet. A session goes to the highest
// of a hash over session and replica (rendezvous hashing), so that it moves
// only when its replica goes.
func (c *call) choose(deployment domain.Name, ready []domain.Replica, session string, tried map[string]bool) (domain.Replica, bool) {
	left := slices.DeleteFunc(ready, func(r domain.Replica) bool { return tried[r.ID] })
	if len(left) == 0 {
		return domain.Replica{}, false
	}
	if session != "" {
		return slices.MaxFunc(left, func(a, b domain.Replica) int { return cmp.Compare(affinity(session, a.ID), affinity(session, b.ID)) }), true
	}
	pulse := c.World.View().Live
	return slices.MinFunc(left, func(a, b domain.Replica) int {
		return cmp.Compare(c.load(pulse, deployment, a.ID), c.load(pulse, deployment, b.ID))
	}), true
}

func affinity(session, replica string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session + "\x00" + replica)) // a hash never fails
	x := h.Sum64()                                     // FNV's low bits follow its input's end: mix them (the finalizer of MurmurHash3)
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// load is how many requests a replica has: what this process sent it, or what
// it last reported, whichever is more.
func (c *call) load(pulse live.View, deployment domain.Name, replica string) int {
	reported, _ := pulse.Replica(deployment, replica)
	return max(c.server.busy.Of(replicaKey(deployment, replica)), reported.Active+reported.Queued)
}

// awaitReplicas answers the ready replicas, which have the addon, if one is
// named. When there are none it sees to it that one is wanted, and holds the
// request until one is ready or Limits.Wake has passed.
func (c *call) awaitReplicas(ctx context.Context, name domain.Name, addon string) ([]domain.Replica, error) {
	timeout, asking := time.NewTimer(c.server.Limits.Wake), time.NewTicker(askAgain)
	defer timeout.Stop()
	defer asking.Stop()
	for {
		v := c.World.View()
		row, ok := v.Deployments.Get(name)
		if !ok {
			return nil, request.NotFoundReason("DEPLOYMENT_NOT_FOUND", "there is no deployment %s any more", name)
		}
		if err := serving(row); err != nil {
			return nil, err
		}
		waits, err := answering(v, addon)
		if err != nil {
			return nil, err
		}
		alive := v.Alive(&row.State)
		ready := slices.DeleteFunc(slices.Clone(alive), func(r domain.Replica) bool { return r.State != domain.ReplicaReady })
		if len(ready) > 0 && !waits {
			return ready, nil
		}
		if prospect := v.Feasibility(v.NeedOf(&row.State)); len(alive) == 0 && (prospect.Infeasible() || prospect.AllLost()) {
			return nil, &domain.Error{Code: domain.Unavailable, Reason: request.ReasonNoPlace, Message: fmt.Sprintf("%s has no replica, and no node can hold one: %s", name, prospect)}
		}
		if row.State.DesiredReplicas == 0 {
			if err := c.Record(domain.Intend(domain.Deployments, name, domain.Command[domain.Deployment](domain.WakeDeployment{}))); err != nil {
				return nil, err
			}
		}
		select {
		case <-c.World.Changed(v.Position):
		case <-asking.C:
			c.World.Live().RecordRequest(name, c.Now())
		case <-c.server.closing.Done():
			return nil, errStopping
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout.C:
			if waits {
				return nil, &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
					Message: fmt.Sprintf("%s was still loading the addon after %s: try again shortly", name, c.server.Limits.Wake)}
			}
			why := tryAgain
			if pending := row.State.DesiredReplicas - len(row.State.Replicas); pending > 0 {
				why = cmp.Or(scheduled(v, &row.State, pending).Message, why)
			}
			return nil, noReplicaReady(name, c.server.Limits.Wake, why)
		}
	}
}

const tryAgain = "try again shortly"

func noReplicaReady(deployment domain.Name, waited time.Duration, why string) error {
	return &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
		Message: fmt.Sprintf("%s is waking up and had no replica ready within %s: %s", deployment, waited, why)}
}
