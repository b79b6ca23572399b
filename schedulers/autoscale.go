package schedulers

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// Autoscale scales each deployment to its load, between its minReplicaCount and maxReplicaCount and
// within its account's quota of accelerators. Scale describes the rules.
//
// Each control plane decides on the load in the heartbeats that it has received since it started.
// All control planes receive the same heartbeats, and the log accepts one of their decisions. A
// control plane that does not have samples of a whole window never scales down.
type Autoscale struct{}

// Name implements Scheduler.
func (Autoscale) Name() string { return "autoscale" }

// Plan implements Scheduler.
func (Autoscale) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	left := quotaLeft{view: v, of: map[string]int{}}
	for row := range v.Deployments.All() {
		d := &row.State
		if d.State != domain.DeploymentReadyState && d.State != domain.DeploymentUpdatingState {
			continue
		}
		want := Scale(d.Scaling(), d.DesiredReplicas, d.HeldFrom, v.Live.Loads(row.Name), now)
		left.limit(row, &want)
		if want.Replicas != d.DesiredReplicas {
			was := d.DesiredReplicas
			plan.add(domain.Intend(domain.Deployments, row.Name,
				domain.Command[domain.Deployment](domain.ScaleDeployment{Replicas: want.Replicas, Reason: want.Reason,
					ByLoad: &was})))
		}
		if !want.Again.IsZero() {
			plan.planAgainAt(want.Again)
		}
	}
	return plan
}

// quotaLeft holds how many more accelerators the quota of each account allows, after the replicas
// that the plan adds.
type quotaLeft struct {
	view *projections.View
	of   map[string]int // devices by account; MaxInt32 without a quota
}

// limit reduces want.Replicas to what the quota of the deployment's account allows, and deducts the
// accelerators of the added replicas from the quota.
func (a quotaLeft) limit(row *projections.Row[domain.Deployment], want *Target) {
	account, each := row.Name.Account(), row.State.AcceleratorCount
	more := want.Replicas - row.State.DesiredReplicas
	if more <= 0 || each == 0 {
		return
	}
	left, known := a.of[account]
	if !known {
		left = math.MaxInt32
		if limit, limited := a.view.Quota(account, domain.QuotaAccelerators); limited {
			left = int(max(0, limit-a.view.Usage(account).Of(domain.QuotaAccelerators)))
		}
	}
	if more*each > left {
		more = left / each
		want.Replicas, want.Reason = row.State.DesiredReplicas+more,
			want.Reason+"; limited by the quota of accelerators"
	}
	a.of[account] = left - more*each
}

// A Target is the result of Scale.
type Target struct {
	Replicas int
	Reason   string    // why Replicas differs from the current count
	Again    time.Time // when to decide again; zero if only an event can change the target
}

// maxSampleGap is the maximum gap between samples of a complete window.
const maxSampleGap = time.Minute

// Scale returns the number of replicas for a deployment whose desired count is current. The need of
// a load sample is the minimum number of replicas with which no load target is exceeded.
//
//  1. scale to zero, if Min is 0 and there was no request in the Zero window
//  2. scale up, to the minimum need of the samples in the Up window
//  3. scale down, to the maximum need of the samples in the Down window, but not to zero
//
// The need is compared with the desired count, so replicas that are still starting count. heldFrom
// is when the count was last set by other means than load: no window begins before heldFrom, and a
// window that is not complete changes nothing. Scale never adds replicas to a deployment without
// replicas, because a request wakes such a deployment.
func Scale(policy domain.Scaling, current int, heldFrom time.Time, load live.LoadHistory, now time.Time) Target {
	switch bounded := max(policy.Min, min(current, policy.Max)); {
	case bounded != current:
		return Target{Replicas: bounded, Reason: fmt.Sprintf("the limits are %d to %d replicas", policy.Min,
			policy.Max)}
	case current == 0 || policy.Min == policy.Max:
		return Target{Replicas: current}
	}
	since := later(heldFrom, sampledSince(load, now))
	full := func(window time.Duration) bool { return !since.After(now.Add(-window)) }
	stay := Target{Replicas: current, Again: now.Add(live.LoadStep)}
	if policy.Min == 0 && full(policy.Zero) && !load.LastRequest.After(now.Add(-policy.Zero)) {
		return Target{Replicas: 0, Reason: "no requests in the last " + inSeconds(policy.Zero)}
	}
	if lowest := needs(policy, load, now.Add(-policy.Up)).min; full(policy.Up) && lowest.replicas > current &&
		current < policy.Max {
		stay.Replicas, stay.Reason = min(lowest.replicas, policy.Max),
			lowest.String()+", minimum of the last "+inSeconds(policy.Up)
		return stay
	}
	highest := needs(policy, load, now.Add(-policy.Down)).max
	if fewer := max(policy.Min, 1, highest.replicas); full(policy.Down) && fewer < current {
		stay.Replicas, stay.Reason = fewer, highest.String()+", maximum of the last "+inSeconds(policy.Down)
	}
	return stay
}

// sampledSince returns the start of the newest series of samples without a gap of more than
// maxSampleGap. It returns now if the newest sample is older than maxSampleGap.
func sampledSince(load live.LoadHistory, now time.Time) time.Time {
	since := now
	for s := range load.Newest() {
		if since.Sub(s.End) > maxSampleGap {
			break
		}
		since = s.Start
	}
	return since
}

// A needRange holds the minimum and the maximum need of the samples of a window.
type needRange struct{ min, max need }

// needs returns the minimum and the maximum need of the samples that end after begin. The newest
// sample always counts.
func needs(policy domain.Scaling, load live.LoadHistory, begin time.Time) needRange {
	var found needRange
	first := true
	for s := range load.Newest() {
		one := needOf(policy.Targets, s)
		switch {
		case first:
			found = needRange{one, one}
		case !s.End.After(begin):
			return found
		case one.replicas < found.min.replicas:
			found.min = one
		case one.replicas > found.max.replicas:
			found.max = one
		}
		first = false
	}
	return found
}

// A need is the number of replicas that one sample of the load needs, and the load target that
// requires the most replicas.
type need struct {
	replicas   int
	target     string
	load, each float64 // load of the deployment, and target of one replica
}

func needOf(targets map[string]float64, s live.LoadSample) (highest need) {
	for _, target := range domain.LoadTargets {
		each, given := targets[target]
		if !given {
			continue
		}
		load := s.InFlight
		switch target {
		case domain.CapacityTarget:
			each *= s.Slots
		case domain.TokensTarget:
			load = s.TokensPerSecond
		case domain.PromptTokensTarget:
			load = s.PromptTokensPerSecond
		case domain.RequestsTarget:
			load = s.RequestsPerSecond
		}
		if each <= 0 { // no replica has reported its slots
			continue
		}
		const slack, bound = 1e-9, 1 << 30 // slack hides rounding errors; bound limits the result
		if n := int(min(math.Ceil(load/each-slack), bound)); highest.target == "" || n > highest.replicas {
			highest = need{n, target, load, each}
		}
	}
	return highest
}

// String formats the need: "requests_per_second 8.1 (target 2 per replica)".
func (n need) String() string {
	name := n.target
	switch name {
	case "":
		return "no load"
	case domain.CapacityTarget:
		name = "requests in flight"
	}
	return fmt.Sprintf("%s %s (target %s per replica)", name, short(n.load), short(n.each))
}

// short formats a number with about three digits.
func short(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'g', 3, 64)
}

func inSeconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
