package routing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/api/routing/admission"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
)

// Replicas sends requests to replicas on nodes. coordinator.ReplicaClient implements it.
type Replicas interface {
	// Complete generates one continuation of a prompt on a replica, and passes it to emit in
	// chunks. It stops when ctx is done or emit returns an error. An error with the code
	// Unavailable means that the replica cannot be reached.
	Complete(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error)
	// Embed computes one embedding on a replica. It stops when ctx is done, and returns errors like
	// Complete.
	Embed(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.EmbeddingRequest) (
		engines.Embedding, engines.Usage, error)
	// Transcribe transcribes a recording on a replica, and passes the transcript to emit in the
	// order of time. It stops and returns errors like Complete.
	Transcribe(ctx context.Context, deployment domain.Name, replica domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error)
}

// renewInterval is the interval at which a waiting request is recorded again as a new request, so
// that its deployment is not scaled to zero meanwhile.
const renewInterval = time.Second

// maxAttempts is the maximum number of replicas on which one request may begin to run. It bounds
// the damage of a request that crashes each replica on which it runs.
const maxAttempts = 3

// A Request is an inference request that is sent to replicas of a deployment until one responds.
// Requests with the same Session go to the same replica as long as it is ready and not far behind
// the others; a request without a session goes to the replica that is predicted to answer it first.
type Request struct {
	Deployment domain.Name
	Session    string
	Addon      string
	Choose     ChooseAddon // selects another addon if Addon is unloaded; nil if the client named Addon
	// Prompt returns the prompt of the request to an addon; it is nil if the prompt is not text.
	Prompt func(addon string) balance.Prompt
	// Answer is the maximum number of tokens of the answer; 0 if the answer has no tokens.
	Answer int64
	Work   int64 // work of a prompt that is not text, in tokens
	// MaxWait is how long the request may wait in the admission queue, whatever the predicted wait is.
	// 0 stands for Limits.Wake, and for an error at once if the predicted wait is long.
	MaxWait time.Duration
	// ReadyOnly states that the request fails if no replica is ready and reachable, and does not wait
	// for one.
	ReadyOnly bool
	// Send makes an attempt on one replica. begun reports whether the client has received a part of
	// the response; then the request is not sent to another replica.
	Send func(ctx context.Context, a *Attempt) (begun bool, err error)
}

// A Placement states on which node a request ran, how loaded the replica was, and why it was
// chosen.
type Placement struct {
	Node       string
	Concurrent int    // number of requests of this server in progress on the replica, including this one
	Route      string // header anneal-route: the replica, the reason of the choice, and the predicted tokens
	// Deployment is the deployment that served the request to a deployment with a release; "" if the
	// target has none.
	Deployment domain.Name
}

// Send sends a request to replicas of its deployment until one responds, and returns the Placement
// of the last attempt.
//
// If a replica refuses the request or goes down, Send tries another replica, unless the client has
// received a part of the response. The request may begin to run on at most maxAttempts replicas.
// While no replica can be reached, Send waits, for at most Limits.Wake in total. If the queues of
// all replicas are full, Send returns the error of one of them.
func (r *Router) Send(ctx context.Context, c *request.Call, q Request) (Placement, error) {
	s := newSendState(c, q, r)
	var err error
	if s.class, err = classOf(c); err != nil {
		return Placement{}, err
	}
	c.World.Live().RecordRequest(q.Deployment, c.Time)
	if !c.Background {
		leave, _ := c.Busy.Enter(interactiveKey(q.Deployment), 1<<30)
		defer leave()
	}
	for {
		row, ready, err := s.awaitReplicas(ctx)
		if domain.CodeOf(err) == domain.NotFound && s.replaceAddon() {
			continue
		}
		if err != nil {
			return Placement{}, err
		}
		a, err := s.admit(ctx, row, ready)
		if errors.Is(err, errReplicasChanged) {
			continue
		}
		if err == nil && a == nil {
			err = s.failure
		}
		if err != nil {
			return Placement{}, err
		}
		at, replica := a.placement, a.Replica
		begun, err := s.attempt(ctx, a)
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
		c.Logger.Warn("a replica failed before its response began; the request is sent to another "+
			"replica", "request", c.ID, "deployment", q.Deployment,
			"replica", replica.ID, "error", err)
	}
}

// A sendState is the state of one call of Send.
type sendState struct {
	c              *request.Call
	q              Request
	router         *Router
	tried          map[string]bool // IDs of replicas that do not get the request again
	runs           int             // number of replicas on which the request may have begun to run
	failure        error           // error of the first replica with a full queue, or else of the last that failed
	remainingWait  time.Duration   // how long the request may still wait for a replica
	remainingQueue time.Duration   // how long the request may still wait in the admission queue
	class          admission.Class
	arrival        time.Time // when the request first came to the admission queue; zero before
}

func newSendState(c *request.Call, q Request, r *Router) *sendState {
	return &sendState{c: c, q: q, router: r, tried: map[string]bool{}, remainingWait: c.Limits.Wake,
		remainingQueue: cmp.Or(q.MaxWait, c.Limits.Wake)}
}

// replaceAddon replaces the request's addon by its successor, and reports whether there is one.
func (s *sendState) replaceAddon() bool {
	next, ok := successor(s.c, s.q)
	if ok {
		s.q.Addon, s.tried, s.runs = next, map[string]bool{}, 0
	}
	return ok
}

// failed records that a replica failed with the retryable error err. A replica that is down can get
// the request again once a heartbeat of its node lists it.
func (s *sendState) failed(replica domain.Replica, err error) {
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

// isDown reports whether err means that the replica or its node is down. Then no part of the
// request is still running there.
func isDown(err error) bool {
	switch request.ReasonOf(err) {
	case engines.ReplicaUnreachable, engines.ReplicaGone, engines.ReplicaLost:
		return true
	}
	return false
}

var errStopping = &domain.Error{Code: domain.Unavailable, Reason: request.ReasonStopping,
	Message: "the server is stopping: send the request to another server, or again after the server has restarted"}

// attempt makes an attempt on one replica, and counts the request in the replica's load until it
// ends. begun reports whether the client has received a part of the response.
func (s *sendState) attempt(ctx context.Context, a *Attempt) (begun bool, err error) {
	ctx, span := startSend(ctx, s.q, a.Replica)
	defer func() { span.End(err) }()
	leave, _ := s.c.Busy.Enter(replicaKey(s.q.Deployment, a.Replica.ID), 1<<30)
	defer leave()
	defer a.endPanic()
	begun, err = s.q.Send(ctx, a)
	if a.end(err, ctx.Err() != nil) {
		s.router.balancers.metrics.opened(s.c, s.q.Deployment, a.Replica, err)
	}
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	if isDown(err) {
		markUnreachable(s.c, s.q.Deployment, a.Replica, request.ReasonOf(err))
	}
	return begun, err
}

// markUnreachable records that a replica is unreachable, so that further requests go to others at
// once, long before the node counts as lost. If the reason is ReplicaUnreachable or ReplicaLost,
// its node is unreachable, with all of its replicas.
func markUnreachable(c *request.Call, deployment domain.Name, replica domain.Replica, reason string) {
	if reason == engines.ReplicaUnreachable || reason == engines.ReplicaLost {
		c.World.Live().MarkNode(replica.Node, c.Now())
		return
	}
	c.World.Live().MarkReplica(deployment, replica.ID, c.Now())
}

func replicaKey(deployment domain.Name, replica string) string {
	return string(deployment) + "#" + replica
}

func interactiveKey(deployment domain.Name) string { return "interactive " + string(deployment) }

// Load returns the load of a deployment. slots is the number of requests that its replicas can
// serve concurrently, according to their last heartbeats. busy reports whether a request to the
// deployment on this server has a waiting client, or a replica has requests in its queue.
func Load(core *request.Core, deployment domain.Name) (slots int, busy bool) {
	busy = core.Busy.Of(interactiveKey(deployment)) > 0
	for _, load := range core.World.View().Live.Replicas(deployment) {
		busy = busy || load.Queued > 0
		slots += load.Slots
	}
	return slots, busy
}

// isRetryable reports whether a request that failed on a replica with err may be sent to another
// replica: the replica refused the request or no longer runs it. Other errors are not retryable,
// because the request may fail in the same way on every replica.
func isRetryable(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Unavailable, domain.ResourceExhausted, domain.NotFound:
		return true
	}
	return false
}

// isUnloaded reports whether err means that the replica does not have the addon or the weights of
// the request.
func isUnloaded(err error) bool {
	var f *domain.Error
	return errors.As(err, &f) && f.Reason == engines.AddonNotLoaded
}

// foundReplicas are the replicas of a deployment that can answer a request at one position.
type foundReplicas struct {
	row         *projections.Row[domain.Deployment]
	ready       []domain.Replica // ready and reachable
	loading     bool             // the addon of the request is still being loaded
	alive       int
	unreachable int
}

func (f *foundReplicas) usable() bool { return len(f.ready) > 0 && !f.loading }

// readyReplicas returns the replicas that can answer the request, or an error if none ever can.
func (s *sendState) readyReplicas(v *projections.View) (f foundReplicas, err error) {
	name, ok := s.q.Deployment, false
	if f.row, ok = v.Deployments.Get(name); !ok {
		return f, request.NotFoundReason("DEPLOYMENT_NOT_FOUND",
			"deployment %s was deleted while the request waited for a replica: use another deployment", name)
	}
	if err := requireLive(f.row); err != nil {
		return f, err
	}
	if f.loading, err = addonState(v, s.q.Addon); err != nil {
		return f, err
	}
	alive := v.Alive(&f.row.State)
	unreachable := v.Live.Unreachable(name, &f.row.State)
	maps.DeleteFunc(unreachable, func(_ string, since time.Time) bool {
		return s.c.Now().Sub(since) > live.UnreachableTime
	})
	f.alive, f.unreachable = len(alive), len(unreachable)
	f.ready = slices.DeleteFunc(slices.Clone(alive), func(r domain.Replica) bool {
		return r.State != domain.ReplicaReady || !unreachable[r.ID].IsZero()
	})
	return f, nil
}

// awaitReplicas returns the deployment, and its replicas that are ready and reachable, once the
// addon of the request is loaded. If there is none, it wakes a deployment that is scaled to zero,
// and waits. It returns an error when the remaining wait ends, or as soon as no replica can ever
// respond, or at once if the request is ReadyOnly.
func (s *sendState) awaitReplicas(ctx context.Context) (*projections.Row[domain.Deployment],
	[]domain.Replica, error) {
	c, name, begin := s.c, s.q.Deployment, time.Now()
	timeout, renew := time.NewTimer(s.remainingWait), time.NewTicker(renewInterval)
	defer timeout.Stop()
	defer renew.Stop()
	defer func() { s.remainingWait -= time.Since(begin) }()
	for {
		v := c.World.View()
		found, err := s.readyReplicas(v)
		if err != nil {
			return nil, nil, err
		}
		row := found.row
		if found.usable() {
			return row, found.ready, nil
		}
		if s.q.ReadyOnly {
			return nil, nil, notReady(c, v, row, 0, found.loading, found.unreachable)
		}
		if found.alive == 0 {
			fit := v.Feasibility(projections.ForAccount(v, name.Account(), v.NeedOf(&row.State)))
			if fit.Infeasible() || fit.AllLost() {
				return nil, nil, &domain.Error{Code: domain.Unavailable, Reason: request.ReasonNoPlace,
					Message: fmt.Sprintf("%s has no replica, and no node can hold one: %s", name, fit)}
			}
		}
		if row.State.DesiredReplicas == 0 {
			if err := c.Record(domain.Intend(domain.Deployments, name,
				domain.Command[domain.Deployment](domain.WakeDeployment{}))); err != nil {
				return nil, nil, err
			}
		}
		select {
		case <-c.World.Changed(v.Position):
		case <-renew.C:
			c.World.Live().RecordRequest(name, c.Now())
		case <-c.Closing.Done():
			return nil, nil, errStopping
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		case <-timeout.C:
			return nil, nil, notReady(c, v, row, c.Limits.Wake, found.loading, found.unreachable)
		}
	}
}

// notReady returns the error of a request for which no replica became ready within the time waited.
// loading reports whether the request's addon is still being loaded, and unreachable is the number
// of unreachable replicas.
func notReady(c *request.Call, v *projections.View, row *projections.Row[domain.Deployment],
	waited time.Duration, loading bool, unreachable int) error {
	if loading {
		return &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
			Message: fmt.Sprintf("%s is still loading the addon after %s: try again shortly", row.Name, waited)}
	}
	why := TryAgain
	if unreachable > 0 {
		why = fmt.Sprintf("%d of its %d replicas cannot be reached: try again", unreachable, len(row.State.Replicas))
	}
	if pending := row.State.DesiredReplicas - len(row.State.Replicas); pending > 0 {
		why = cmp.Or(StatusOf(v, row.Name, &row.State, pending).Message, why)
	}
	return NoReplicaReady(row.Name, waited, why)
}

// TryAgain is the advice in the error of NoReplicaReady if the cause is not known.
const TryAgain = "try again shortly"

// NoReplicaReady returns the error of a request for which no replica of a deployment became ready.
// waited is how long the request waited, and why is the cause, or TryAgain if the cause is not
// known.
func NoReplicaReady(deployment domain.Name, waited time.Duration, why string) error {
	return &domain.Error{Code: domain.Unavailable, Reason: request.ReasonScalingUp,
		Message: fmt.Sprintf("%s had no ready replica within %s: %s", deployment, waited, why)}
}

// UnreachableOf returns the number of the ready replicas among alive that are unreachable.
func UnreachableOf(v *projections.View, name domain.Name, d *domain.Deployment, alive []domain.Replica) (count int) {
	unreachable := v.Live.Unreachable(name, d)
	for _, r := range alive {
		if r.State == domain.ReplicaReady && !unreachable[r.ID].IsZero() {
			count++
		}
	}
	return count
}

// StatusOf returns the status that responses show for a deployment. It is the recorded status if
// that is an error. Otherwise its message states why pending replicas are not placed, how many
// replicas are unreachable or, for a deployment without replicas, why no node can run one. It names
// no nodes. pending is the number of pending replicas. v may be nil.
func StatusOf(v *projections.View, name domain.Name, d *domain.Deployment, pending int) domain.Status {
	if v == nil || !d.Live() || d.Status.Code != domain.OK.String() {
		return d.Status.HideNodes()
	}
	if pending == 0 && len(d.Replicas) > 0 {
		alive := v.Alive(d)
		lost := UnreachableOf(v, name, d, alive)
		if lost == 0 {
			return d.Status.HideNodes()
		}
		return domain.Status{Code: domain.Unavailable.String(), Message: fmt.Sprintf(
			"%d of %d replicas cannot be reached: requests are sent to others, and a replica is replaced if its node "+
				"does not return", lost, len(alive))}
	}
	fit, why := v.Feasibility(projections.ForAccount(v, name.Account(), v.NeedOf(d))), ""
	switch {
	case fit.Fits():
		return d.Status // the scheduler is about to place the pending replicas
	case pending > 0:
		why = fmt.Sprintf("%d of %d replicas are waiting for a node: %s", pending, d.DesiredReplicas, fit)
	case fit.Infeasible() || fit.AllLost():
		why = fmt.Sprintf("a request cannot start a replica: %s", fit)
	default:
		return d.Status
	}
	return domain.Status{Code: domain.Unavailable.String(), Message: why}
}
