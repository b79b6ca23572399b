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
// control plane scales down only when it has load samples of a complete scale-down window.
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

// quotaLeft holds how many more accelerators the quota of each account allows, beyond the replicas
// that the plan adds.
type quotaLeft struct {
	view *projections.View
	of   map[string]int // number of accelerators by account; MaxInt32 for an account without a quota
}

// limit reduces want.Replicas to what the quota of the deployment's account allows. It deducts the
// accelerators of the added replicas from quotaLeft.
func (a quotaLeft) limit(row *projections.Row[domain.Deployment], want *Target) {
	account, now := row.Name.Account(), row.State.DesiredReplicas
	more := want.Replicas - row.State.DesiredReplicas
	if more <= 0 || row.State.AcceleratorCount == 0 {
		return
	}
	left, known := a.of[account]
	if !known {
		left = math.MaxInt32
		if limit, limited := a.view.Quota(account, domain.QuotaAccelerators); limited {
			left = int(max(0, limit-a.view.Usage(account).Of(domain.QuotaAccelerators)))
		}
	}
	added := func(n int) int { return int(row.State.Devices(now+n) - row.State.Devices(now)) }
	if added(more) > left {
		for more > 0 && added(more) > left {
			more--
		}
		want.Replicas, want.Reason = now+more, want.Reason+"; limited by the quota of accelerators"
	}
	a.of[account] = left - added(more)
}

// A Target is the number of replicas that Scale decides, and why.
type Target struct {
	Replicas int
	Reason   string    // why Replicas differs from the current desired count of the deployment; "" if it does not
	Again    time.Time // when to decide again; zero if only an event can change the target
}

// maxSampleGap is the maximum gap between samples of a complete window.
const maxSampleGap = time.Minute

// scaleInterval is the time between two decisions while no event is recorded. Agents with queued
// requests send heartbeats at the same interval.
const scaleInterval = time.Second

// Scale returns the number of replicas for a deployment whose desired count is current. A count
// below Min or above Max is first set to this limit. Scale adds no replicas to a deployment that
// has none and whose Min is 0, because a request scales up such a deployment (see
// domain.WakeDeployment).
//
// The need of a load sample is the minimum number of replicas with which no load target is
// exceeded. The need of a peak is the minimum number of replicas with which no request waits long:
// see peakNeed. The Up, Down and Zero windows end now, and their lengths are in the policy. Scale
// follows one of these rules:
//
//  1. scale to zero, if Min is 0 and there was no request in the Zero window
//  2. scale up, to the minimum need of the samples in the Up window
//  3. scale up at once, to the need of the newest peak
//  4. scale down, to the maximum need of the samples and peaks in the Down window, but not to zero
//
// The need is compared with the desired count, so replicas that are still starting count. heldFrom
// is when something other than load last set the count (see domain.Deployment.HeldFrom). No window
// begins before heldFrom, a window without complete samples changes nothing, and a peak adds no
// replicas until the length of the Up window has passed since heldFrom.
func Scale(policy domain.Scaling, current int, heldFrom time.Time, load live.LoadHistory, now time.Time) Target {
	switch bounded := max(policy.Min, min(current, policy.Max)); {
	case bounded != current:
		return Target{Replicas: bounded, Reason: fmt.Sprintf("the limits are %d to %d replicas", policy.Min,
			policy.Max)}
	case current == 0 || policy.Min == policy.Max:
		return Target{Replicas: current}
	}
	w := windowsOf(policy, load, now)
	since := later(heldFrom, w.since)
	full := func(window time.Duration) bool { return !since.After(now.Add(-window)) }
	stay := Target{Replicas: current, Again: now.Add(scaleInterval)}
	if policy.Min == 0 && full(policy.Zero) && !load.LastRequest.After(now.Add(-policy.Zero)) {
		return Target{Replicas: 0, Reason: "no requests in the last " + inSeconds(policy.Zero)}
	}
	var burst need
	if now.Sub(load.Latest.End) <= live.LoadStep {
		burst = peakNeed(load.Latest)
	}
	if full(policy.Up) && w.lowest.replicas > current && current < policy.Max && w.lowest.replicas >= burst.replicas {
		stay.Replicas, stay.Reason = min(w.lowest.replicas, policy.Max),
			w.lowest.String()+", minimum of the last "+inSeconds(policy.Up)
		return stay
	}
	if burst.replicas > current && current < policy.Max && !heldFrom.After(now.Add(-policy.Up)) {
		stay.Replicas, stay.Reason = min(burst.replicas, policy.Max), burst.String()
		return stay
	}
	if fewer := max(policy.Min, 1, w.highest.replicas, burst.replicas); full(policy.Down) && fewer < current {
		stay.Replicas, stay.Reason = fewer, w.highest.String()+", maximum of the last "+inSeconds(policy.Down)
	}
	return stay
}

// windows summarizes load samples: since when there are samples without a gap, and the needs in the
// Up and Down windows of the policy.
type windows struct {
	// time since which there are samples without a gap above maxSampleGap; the current time without
	// samples
	since time.Time
	// lowest is the minimum need in the Up window, and highest the maximum need in the Down window
	lowest, highest need
}

// windowsOf returns the summary of the load samples at now. The newest sample belongs to both
// windows, even if it ended before they begin.
func windowsOf(policy domain.Scaling, load live.LoadHistory, now time.Time) windows {
	w := windows{since: now}
	targets := targetsOf(policy)
	up, down := now.Add(-policy.Up), now.Add(-policy.Down)
	begin := now.Add(-max(policy.Up, policy.Down, policy.Zero))
	first, joined := true, true
	for s := range load.Newest() {
		joined = joined && w.since.Sub(s.End) <= maxSampleGap
		if joined {
			w.since = s.Start
		}
		inUp, inDown := first || s.End.After(up), first || s.End.After(down)
		if inUp {
			if one := targets.need(s); first || one.replicas < w.lowest.replicas {
				w.lowest = one
			}
		}
		if inDown {
			one := targets.need(s)
			if peak := peakNeed(s); peak.replicas > one.replicas {
				one = peak
			}
			if first || one.replicas > w.highest.replicas {
				w.highest = one
			}
		}
		if first = false; s.Start.Before(begin) {
			break
		}
	}
	return w
}

// A need is the number of replicas that one sample of the load requires, and the load target that
// requires the most.
type need struct {
	replicas   int
	target     string
	load, each float64 // load of all replicas together, and target for the load of one replica
}

// targets are the load targets of a policy in the order of domain.LoadTargets; 0 stands for no
// target.
type targets [5]float64

func targetsOf(policy domain.Scaling) (all targets) {
	for i, name := range domain.LoadTargets {
		all[i] = policy.Targets[name]
	}
	return all
}

// need returns the highest need of a sample's mean loads over all load targets.
func (t targets) need(s live.LoadSample) (highest need) {
	loads := [len(t)]float64{s.InFlight, s.TokensPerSecond, s.PromptTokensPerSecond, s.RequestsPerSecond, s.InFlight}
	for i, each := range t {
		if i == 0 {
			each *= s.Slots
		}
		if one := needOf(domain.LoadTargets[i], loads[i], each); one.target != "" &&
			(highest.target == "" || one.replicas > highest.replicas) {
			highest = one
		}
	}
	return highest
}

// peakTarget is the value of need.target in results of peakNeed.
const peakTarget = "peak"

// tolerableDelay is how long, in seconds, requests may wait without causing more replicas. The
// requests of a Peak that replicas complete within this time do not count.
const tolerableDelay = 1

// peakNeed returns how many replicas are required so that all requests of a sample's Peak are
// served at once, or within tolerableDelay.
func peakNeed(s live.LoadSample) need {
	one := needOf(peakTarget, max(0, s.Peak-s.CompletedPerSecond*tolerableDelay), s.Slots)
	one.load = s.Peak
	return one
}

// needOf returns how many replicas are required for load when one replica handles the load
// perReplica. target is the name of the load target, for the result. needOf returns a zero need if
// perReplica is 0: the policy has no value for the load target, or no replica has reported how many
// requests it can serve.
func needOf(target string, load, perReplica float64) need {
	if perReplica <= 0 {
		return need{}
	}
	// slack absorbs rounding errors of the quotient; bound is the maximum number of replicas
	const slack, bound = 1e-9, 1 << 30
	return need{int(min(math.Ceil(load/perReplica-slack), bound)), target, load, perReplica}
}

// String formats the need for messages: "requests_per_second 8.1 (target 2 per replica)".
func (n need) String() string {
	name := n.target
	switch name {
	case "":
		return "no load"
	case domain.CapacityTarget:
		name = "requests in flight"
	case peakTarget:
		return fmt.Sprintf("%s requests at once (a replica serves %s)", short(n.load), short(n.each))
	}
	return fmt.Sprintf("%s %s (target %s per replica)", name, short(n.load), short(n.each))
}

// short formats a number with about three digits, for messages.
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
