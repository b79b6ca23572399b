package routing

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
)

// balancers has a Balancer for each deployment that this server sends requests to.
type balancers struct {
	hasher       balance.Hasher
	metrics      balancerMetrics
	queueMetrics queueMetrics
	notes        notes // for the other gateways

	mu           sync.Mutex
	start        time.Time // the times of the Balancers are durations since start
	byDeployment map[domain.Name]*deploymentBalancer
	pruned       time.Time
}

type deploymentBalancer struct {
	*balance.Balancer
	queue   *queue
	created uint64 // CreateVersion of the deployment
	version uint64 // Version of the deployment whose replicas the Balancer has
	used    time.Time
}

// balancerKept is how long a Balancer is kept after its last request.
const balancerKept = time.Hour

// forDeployment returns the Balancer of a deployment, and the clock for its methods.
func (b *balancers) forDeployment(row *projections.Row[domain.Deployment], clock func() time.Time) (
	*balance.Balancer, func() time.Duration) {
	found, now := b.of(row, clock)
	return found.Balancer, now
}

// of returns the Balancer and the queue of a deployment, and the clock for the Balancer's methods.
func (b *balancers) of(row *projections.Row[domain.Deployment], clock func() time.Time) (
	*deploymentBalancer, func() time.Duration) {
	now := clock()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.byDeployment == nil {
		b.byDeployment, b.start, b.pruned = map[domain.Name]*deploymentBalancer{}, now, now
	}
	found := b.byDeployment[row.Name]
	if found == nil || found.created != row.CreateVersion {
		found = &deploymentBalancer{created: row.CreateVersion, Balancer: balance.New(func(p balance.SentPrompt) {
			b.notes.add(Note{Deployment: row.Name, Created: row.CreateVersion, SentPrompt: p}, clock)
		})}
		found.queue = newQueue(row.Name, row.CreateVersion, &b.queueMetrics)
		b.byDeployment[row.Name] = found
	}
	found.used = now
	if row.Version > found.version { // a waiting request may have an older row than others
		ids := make([]string, 0, len(row.State.Replicas))
		for id := range row.State.Replicas {
			ids = append(ids, id)
		}
		found.Keep(ids)
		found.version = row.Version
	}
	if now.Sub(b.pruned) > balancerKept {
		b.pruned = now
		for name, one := range b.byDeployment {
			if now.Sub(one.used) > balancerKept {
				delete(b.byDeployment, name)
			}
		}
	}
	start := b.start
	return found, func() time.Duration { return clock().Sub(start) }
}

// promptOf returns the Prompt of a completion request to an addon. Prompts with different cache
// scopes, addons or tools share no blocks.
func (b *balancers) promptOf(req *engines.CompletionRequest, addon string) balance.Prompt {
	scope := req.CacheScope + "\x00" + addon
	switch {
	case req.Chat != nil:
		for _, tool := range req.Chat.Tools {
			scope += "\x00" + string(tool)
		}
		text, _ := json.Marshal(req.Chat.Messages) // messages can always be marshaled
		return b.hasher.Text(scope, text)
	case req.PromptTokens != nil:
		return b.hasher.TokenIDs(scope, req.PromptTokens)
	}
	return b.hasher.Text(scope, []byte(req.Prompt))
}

// embeddingPromptOf returns the Prompt of an embedding request, which no replica caches.
func embeddingPromptOf(req *engines.EmbeddingRequest) balance.Prompt {
	return balance.Prompt{Tokens: int64(max(len(req.Tokens), balance.TokensOf(len(req.Input))))}
}

// An Attempt is a request that is sent to one replica.
type Attempt struct {
	Replica domain.Replica
	Addon   string

	placement Placement
	cached    int64 // tokens of the prompt that the replica had cached; -1 if it does not report them
	answer    int64 // tokens of the answer; -1 if they are not known
	sent      *balance.InFlight
	ticket    *waiter // place in the admission queue
	ended     bool
	now       func() time.Duration
}

// FirstToken records that the replica has begun to answer.
func (a *Attempt) FirstToken() {
	a.sent.FirstToken(a.now())
	a.ticket.firstToken()
}

// Cached records how many tokens of the prompt the replica had cached.
func (a *Attempt) Cached(tokens int) { a.cached = int64(tokens) }

// Answered records how many tokens the replica has generated.
func (a *Attempt) Answered(tokens int) { a.answer = int64(tokens) }

// end records how the attempt ended. It reports whether the circuit breaker of the replica opened.
// canceled reports that the client has disconnected.
func (a *Attempt) end(err error, canceled bool) (opened bool) {
	a.ended = true
	switch {
	case err == nil:
		a.sent.FirstToken(a.now())
		a.sent.End(a.cached)
	case !canceled && isReplicaFault(err):
		opened = a.sent.Fail(a.now())
	default:
		opened = a.sent.Cancel(a.now())
	}
	a.ticket.end(a.cached, a.answer, err != nil)
	return opened
}

// isReplicaFault reports whether an error of a request means that the replica fails. Errors of invalid
// requests, of full queues, and of replicas and addons that were removed do not.
func isReplicaFault(err error) bool {
	switch domain.CodeOf(err) {
	case domain.Unavailable:
		reason := request.ReasonOf(err)
		return reason != engines.AddonNotLoaded && reason != engines.ReplicaGone
	case domain.Internal, domain.Unknown, domain.DeadlineExceeded, domain.Aborted:
		return true
	}
	return false
}

// endPanic records that the attempt failed, if a panic ended it.
func (a *Attempt) endPanic() {
	if !a.ended {
		a.sent.Cancel(a.now())
		a.ticket.end(a.cached, a.answer, true)
	}
}

// routeOf returns the value of the header anneal-route. It does not disclose the load of a replica
// to the caller if the deployment belongs to another account.
func routeOf(p request.Principal, deployment domain.Name, replica string, candidates, requests int,
	choice balance.Choice) string {
	work := ""
	if p.Account == deployment.Account() || p.IsOperator() {
		work = fmt.Sprintf("requests=%d; pending-tokens=%d; ", requests, choice.Pending)
		if choice.Slow > 0 {
			work += fmt.Sprintf("slow-tokens=%d; ", choice.Slow)
		}
	}
	route := fmt.Sprintf("replica=%s; reason=%s; candidates=%d; %scached-tokens=%d; uncached-tokens=%d", replica,
		choice.Reason, candidates, work, choice.Cached, choice.Uncached)
	if choice.Load > 0 {
		route += fmt.Sprintf("; addon-load-tokens=%d", choice.Load)
	}
	switch {
	case choice.Forced:
		route += "; breaker=open"
	case choice.Probe:
		route += "; breaker=half-open"
	}
	return route
}

// assumedAddonLoad is the load time of addons on a replica that has not measured it.
const assumedAddonLoad = 300 * time.Millisecond

// candidates returns the replicas with their loads: the number of requests in progress that this
// server has sent, or the number that the node has reported, whichever is higher. now and the times
// of candidates are durations since start.
func candidates(c *request.Call, q Request, replicas []domain.Replica, start time.Time, now time.Duration) (
	out []balance.Candidate) {
	status := c.World.View().Live
	out = make([]balance.Candidate, 0, len(replicas))
	for _, r := range replicas {
		reported, ok := status.Replica(q.Deployment, r.ID)
		one := balance.Candidate{ID: r.ID, Slots: reported.Slots,
			Requests: max(c.Busy.Of(replicaKey(q.Deployment, r.ID)), reported.Active+reported.Queued)}
		if queued, unloaded := reported.Unloaded[q.Addon]; unloaded {
			one.AddonLoad, one.AddonQueued = cmp.Or(reported.AddonLoadTime, assumedAddonLoad), queued
		}
		if ok {
			one.ReportTime = reported.Time.Sub(start)
			age := max(0, now-one.ReportTime)
			one.Report = balance.Report{PendingTokens: reported.Engine.PendingTokens,
				CacheBlocks: max(0, reported.Engine.CacheTokens) / balance.BlockTokens, Age: age + reported.Engine.Age}
		}
		out = append(out, one)
	}
	return out
}

func affinity(session, replica string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(session + "\x00" + replica)) // writing to a hash never fails
	return mix(h.Sum64())
}

// mix is the finalizer of MurmurHash3, which mixes the bits, because the low bits of FNV depend
// mostly on the end of the input.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return x
}
