package routing

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
	"anneal/projections"
	"anneal/projections/live"
)

// Replicas sends requests to the replicas of deployments.
type Replicas interface {
	// Complete generates one continuation on a replica and passes the continuation to emit in
	// chunks. It stops when ctx is done or emit fails. An error with the code Unavailable means
	// that the replica cannot be reached.
	Complete(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error)
	// Embed computes one embedding on a replica. It stops, and returns errors, under the same
	// conditions as Complete.
	Embed(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.EmbeddingRequest) (
		engines.Embedding, engines.Usage, error)
	// Transcribe transcribes a recording on a replica and passes the transcript to emit in the
	// order of time. It stops, and returns errors, under the same conditions as Complete.
	Transcribe(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error)
}

// renewInterval is the interval at which a request that waits for a replica is recorded as a new
// request, so that the deployment is not scaled to zero during the wait.
const renewInterval = time.Second

// maxAttempts is the maximum number of replicas that may run a part of one request, because the
// request itself may crash them.
const maxAttempts = 3

// A Request is sent to the replicas of a deployment until one responds. Requests of one session go
// to the same replica while it is ready; a request without a session goes to the least loaded one.
type Request struct {
	Deployment domain.Name
	Session    string
	Addon      string
	Choose     ChooseAddon // selects another addon when Addon is unloaded; nil when the client named Addon
	// Send sends the request to a replica. begun reports whether a part of the response was sent to
	// the client: the request is then not sent to another replica.
	Send func(ctx context.Context, replica domain.Replica, addon string) (begun bool, err error)
}

// A Placement identifies the node that processed a request, and the load of the replica on it.
type Placement struct {
	Node       string
	Concurrent int // requests that this server has in progress on the replica, including this request
}

// Send sends a request to the replicas of its deployment until one responds, and returns the
// Placement of the last attempt. When a replica did not run the request, or is gone, Send tries
// another one, unless a part of the response was sent to the client. At most maxAttempts replicas
// may run a part of the request. While no replica can be reached, Send waits for one, for
// Limits.Wake in total. When the queues of all replicas are full, Send returns the error of one.
func (r *Router) Send(ctx context.Context, c *request.Call, q Request) (Placement, error) {
	c.World.Live().RecordRequest(q.Deployment, c.Time)
	if !c.Background {
		leave, _ := c.Busy.Enter(interactiveKey(q.Deployment), 1<<30)
		defer leave()
	}
	s := &sending{c: c, q: q, marks: &r.unreachable, tried: map[string]bool{}, patience: c.Limits.Wake}
	for {
		ready, err := s.awaitReplicas(ctx)
		if domain.CodeOf(err) == domain.NotFound && s.replaceAddon() {
			continue
		}
		if err != nil {
			return Placement{}, err
		}
		replica, ok := choose(c, s.q, ready, s.tried)
		if !ok {
			return Placement{}, s.failure
		}
		at := Placement{replica.Node.ID(), c.Busy.Of(replicaKey(q.Deployment, replica.ID)) + 1}
		begun, err := s.attempt(ctx, replica)
		if err == nil || begun || ctx.Err() != nil || !isRetryable(err) {
			return at, err
		}
		if c.Closing.Err() != nil {
			return at, errStopping
		}
		if isUnloaded(err) && s.replaceAddon() {
			continue
		}
		if s.failed(replica, err); s.runs == maxAttempts {
			return at, s.failure
		}
		c.Logger.Warn("a replica failed before its response began", "request", c.ID, "deployment", q.Deployment,
			"replica", replica.ID, "error", err)
	}
}

// A sending is one call of Send.
type sending struct {
	c        *request.Call
	q        Request
	marks    *unreachable
	tried    map[string]bool // replicas that do not get the request again
	runs     int             // replicas that may have run a part of the request
	failure  error           // error of one of the replicas that failed
	patience time.Duration   // how long the request may still wait for replicas
}

// replaceAddon changes the addon of the request to the one that has replaced it, if any.
func (s *sending) replaceAddon() bool {
	next, ok := successor(s.c, s.q)
	if ok {
		s.q.Addon, s.tried, s.runs = next, map[string]bool{}, 0
	}
	return ok
}

// failed records that a replica failed with the retryable error err. A replica that is gone may get
// the request again once a heartbeat lists it.
func (s *sending) failed(replica domain.Replica, err error) {
	reason := request.ReasonOf(err)
	if reason == engines.ReplicaUnreachable || reason == engines.ReplicaGone {
		return
	}
	s.runs++
	s.tried[replica.ID] = reason != engines.ReplicaLost
	if domain.CodeOf(s.failure) != domain.ResourceExhausted {
		s.failure = err
	}
}

// isGone reports whether err means that the replica, or its node, is gone: then no part of the
// request is still running there.
func isGone(err error) bool {
	switch request.ReasonOf(err) {
	case engines.ReplicaUnreachable, engines.ReplicaGone, engines.ReplicaLost:
		return true
	}
	return false
}

var errStopping = &domain.Error{Code: domain.Unavailable, Reason: request.ReasonStopping,
	Message: "the server is stopping: send the request again when the server has restarted, or to another server"}

// attempt sends the request to one replica, and counts the request in the load of the replica until
// the request ends. begun reports whether a part of the response was sent to the client.
func (s *sending) attempt(ctx context.Context, replica domain.Replica) (begun bool, err error) {
	leave, _ := s.c.Busy.Enter(replicaKey(s.q.Deployment, replica.ID), 1<<30)
	defer leave()
	begun, err = s.q.Send(ctx, replica, s.q.Addon)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if isGone(err) {
		s.marks.mark(s.q.Deployment, replica, request.ReasonOf(err), s.c.Now())
	}
	return begun, err
}

func replicaKey(deployment domain.Name, replica string) string {
	return string(deployment) + "#" + replica
}

func interactiveKey(deployment domain.Name) string { return "interactive " + string(deployment) }

// Load returns the load of a deployment. slots is the number of requests that its replicas can
// serve concurrently, according to their last heartbeats. busy reports whether the deployment has
// requests in progress on this server that a client waits for, or requests from any server that
// wait in the queue of a replica.
func Load(core *request.Core, deployment domain.Name) (slots int, busy bool) {
	busy = core.Busy.Of(interactiveKey(deployment)) > 0
	for _, load := range core.World.View().Live.Replicas(deployment) {
		busy = busy || load.Queued > 0
		slots += load.Slots
	}
	return slots, busy
}

// isRetryable reports whether the request may be sent to another replica after one has failed with
// err: the replica has rejected the request, or does not run it any more. A request that failed on a
// replica that continues to serve is not retryable, because it may fail in the same way everywhere.
func isRetryable(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Unavailable, domain.ResourceExhausted, domain.NotFound:
		return true
	}
	return false
}

// isUnloaded reports whether err means that the replica does not have the requested addon or
// weights.
func isUnloaded(err error) bool {
	var f *domain.Error
	return errors.As(err, &f) && f.Reason == engines.AddonNotLoaded
}

// choose returns one of the ready replicas that were not tried yet, or false when none is left. The
// requests of a session go to the replica with the highest hash of session and replica (rendezvous
// hashing), so that a session moves only when its replica is gone.
func choose(c *request.Call, q Request, ready []domain.Replica, tried map[string]bool) (domain.Replica, bool) {
	left := slices.DeleteFunc(ready, func(r domain.Replica) bool { return tried[r.ID] })
	if len(left) == 0 {
		return domain.Replica{}, false
	}
	if q.Session != "" {
		return slices.MaxFunc(left, func(a, b domain.Replica) int {
			return cmp.Compare(affinity(q.Session, a.ID), affinity(q.Session, b.ID))
		}), true
	}
	status := c.World.View().Live
	return slices.MinFunc(left, func(a, b domain.Replica) int {
		return cmp.Compare(load(c, status, q.Deployment, a.ID), load(c, status, q.Deployment, b.ID))
	}), true
}

func affinity(session, replica string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session + "\x00" + replica)) // writing to a hash never fails
	// the finalizer of MurmurHash3 mixes the bits, because the low bits of FNV depend mostly on the
	// end of the input
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}

// load returns the number of requests in progress on a replica: the requests that this process has
// sent, or the requests in the replica's last heartbeat, whichever are more.
func load(c *request.Call, status live.View, deployment domain.Name, replica string) int {
	reported, _ := status.Replica(deployment, replica)
	return max(c.Busy.Of(replicaKey(deployment, replica)), reported.Active+reported.Queued)
}

// awaitReplicas returns the ready and reachable replicas of the deployment once the addon, if any,
// is loaded. Without such replicas, it wakes a deployment that is scaled to zero and waits. It
// returns an error when the patience of the request ends, or as soon as no replica can respond.
func (s *sending) awaitReplicas(ctx context.Context) ([]domain.Replica, error) {
	c, name, begin := s.c, s.q.Deployment, time.Now()
	timeout, renew := time.NewTimer(s.patience), time.NewTicker(renewInterval)
	defer timeout.Stop()
	defer renew.Stop()
	defer func() { s.patience -= time.Since(begin) }()
	for {
		v := c.World.View()
		row, ok := v.Deployments.Get(name)
		if !ok {
			return nil, request.NotFoundReason("DEPLOYMENT_NOT_FOUND",
				"deployment %s was deleted while the request waited for a replica: use another deployment", name)
		}
		if err := serving(row); err != nil {
			return nil, err
		}
		loading, err := addonState(v, s.q.Addon)
		if err != nil {
			return nil, err
		}
		alive := v.Alive(&row.State)
		unreachable := s.marks.of(v.Live, &row.State, name, c.Now)
		ready := slices.DeleteFunc(slices.Clone(alive), func(r domain.Replica) bool {
			return r.State != domain.ReplicaReady || unreachable[r.ID]
		})
		if len(ready) > 0 && !loading {
			return ready, nil
		}
		if len(alive) == 0 {
			fit := v.Feasibility(projections.ForAccount(v, name.Account(), v.NeedOf(&row.State)))
			if fit.Infeasible() || fit.AllLost() {
				return nil, &domain.Error{Code: domain.Unavailable, Reason: request.ReasonNoPlace,
					Message: fmt.Sprintf("%s has no replica, and no node can hold one: %s", name, fit)}
			}
		}
		if row.State.DesiredReplicas == 0 {
			if err := c.Record(domain.Intend(domain.Deployments, name,
				domain.Command[domain.Deployment](domain.WakeDeployment{}))); err != nil {
				return nil, err
			}
		}
		select {
		case <-c.World.Changed(v.Position):
		case <-renew.C:
			c.World.Live().RecordRequest(name, c.Now())
		case <-c.Closing.Done():
			return nil, errStopping
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timeout.C:
			return nil, notReady(c, v, row, loading, len(unreachable))
		}
	}
}

// notReady returns the error of a request for which no replica became ready within Limits.Wake.
// loading reports whether the requested addon is still being loaded, and unreachable is the number
// of replicas that could not be reached.
func notReady(c *request.Call, v *projections.View, row *projections.Row[domain.Deployment], loading bool,
	unreachable int) error {
	if loading {
		return &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
			Message: fmt.Sprintf("%s was still loading the addon after %s: try again shortly", row.Name, c.Limits.Wake)}
	}
	why := TryAgain
	if unreachable > 0 {
		why = fmt.Sprintf("%d of its %d replicas cannot be reached: try again", unreachable, len(row.State.Replicas))
	}
	if pending := row.State.DesiredReplicas - len(row.State.Replicas); pending > 0 {
		why = cmp.Or(StatusOf(v, row.Name, &row.State, pending).Message, why)
	}
	return NoReplicaReady(row.Name, c.Limits.Wake, why)
}

// TryAgain is the advice in the error of NoReplicaReady when the cause is not known.
const TryAgain = "try again shortly"

// NoReplicaReady returns the error of a request for which no replica of a deployment became ready.
// waited is how long the request has waited. why is the cause or, if the cause is not known,
// TryAgain.
func NoReplicaReady(deployment domain.Name, waited time.Duration, why string) error {
	return &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
		Message: fmt.Sprintf("%s had no ready replica within %s: %s", deployment, waited, why)}
}

// StatusOf returns the status of a deployment for responses. If the recorded status is an error,
// StatusOf returns the recorded status. Otherwise the message of the status states why pending
// replicas are not placed or, for a deployment without replicas, that no node can run one. pending
// is the number of pending replicas. v may be nil.
func StatusOf(v *projections.View, name domain.Name, d *domain.Deployment, pending int) domain.Status {
	if v == nil || !d.Live() || d.Status.Code != domain.OK.String() || pending == 0 && len(d.Replicas) > 0 {
		return d.Status
	}
	fit, why := v.Feasibility(projections.ForAccount(v, name.Account(), v.NeedOf(d))), ""
	switch {
	case fit.Fits():
		return d.Status // the pending replicas are about to be placed
	case pending > 0:
		why = fmt.Sprintf("%d of %d replicas are waiting for a node: %s", pending, d.DesiredReplicas, fit)
	case fit.Infeasible() || fit.AllLost():
		why = fmt.Sprintf("a request could not start a replica: %s", fit)
	default:
		return d.Status
	}
	return domain.Status{Code: domain.Unavailable.String(), Message: why}
}
