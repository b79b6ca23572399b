package schedulers

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Autoscale gives each deployment as many replicas as its load asks for,
// between its minReplicaCount and maxReplicaCount: see Scale. An account's
// quota of accelerators is kept.
//
// Its samples are what this process has heard since it began, so every control
// plane decides by itself; they hear the same beats, and the log takes one
// decision. One that has not heard a whole window takes nothing away.
type Autoscale struct{}

// Name implements Scheduler.
func (Autoscale) Name() string { return "autoscale" }

// Plan implements Scheduler.
func (Autoscale) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	left := allowances{view: v, of: map[string]int{}}
	for row := range v.Deployments.All() {
		d := &row.State
		if d.State != domain.DeploymentReadyState && d.State != domain.DeploymentUpdatingState {
			continue
		}
		want := Scale(d.Scaling(), d.DesiredReplicas, d.HeldFrom, v.Live.Loads(row.Name), now)
		left.hold(row, &want)
		if want.Replicas != d.DesiredReplicas {
			was := d.DesiredReplicas
			plan.add(domain.Intend(domain.Deployments, row.Name,
				domain.Command[domain.Deployment](domain.ScaleDeployment{Replicas: want.Replicas, Reason: want.Reason, ByLoad: &was})))
		}
		if !want.Again.IsZero() {
			plan.lookAgain(want.Again)
		}
	}
	return plan
}

// allowances are the accelerators that accounts may still have by their quotas,
// less what the plan in the making gives them.
type allowances struct {
	view *projections.View
	of   map[string]int // by account; one that is not bounded has an allowance without end
}

// hold cuts a want to what is left of the account's quota, and takes that away.
func (a allowances) hold(row *projections.Row[domain.Deployment], want *Want) {
	account, each := row.Name.Account(), row.State.AcceleratorCount
	more := want.Replicas - row.State.DesiredReplicas
	if more <= 0 || each == 0 {
		return
	}
	left, known := a.of[account]
	if !known {
		left = math.MaxInt32
		if most, bounded := a.view.Quota(account, domain.QuotaAccelerators); bounded {
			left = int(max(0, most-a.view.Usage(account).Of(domain.QuotaAccelerators)))
		}
	}
	if more*each > left {
		more = left / each
		want.Replicas, want.Reason = row.State.DesiredReplicas+more, want.Reason+"; the quota of accelerators allows no more"
	}
	a.of[account] = left - more*each
}

// A Want is how many replicas load asks for and why, and when to look again,
// if time can change that.
type Want struct {
	Replicas int
	Reason   string // of a change
	Again    time.Time
}

// unheard is the longest gap between samples that still counts as having
// listened.
const unheard = time.Minute

// Scale says how many replicas a deployment should have that wants current
// ones now. A sample needs the least replicas with which none of the targets is
// exceeded; where there are several targets, the most that any of them needs.
//
//  1. to zero, where Min is 0 and nothing was asked for the Zero window
//  2. up, to what every sample of the Up window needs at least
//  3. down, to what no sample of the Down window exceeds, but not to zero
//
// Replicas that are still starting count: the need is compared with what is
// wanted, not with what is ready. Windows begin at heldFrom at the earliest,
// when somebody else set the count, and a window of which part was not heard
// decides nothing. From zero nothing but a request wakes a deployment.
func Scale(policy domain.Scaling, current int, heldFrom time.Time, load projections.LoadHistory, now time.Time) Want {
	switch bounded := max(policy.Min, min(current, policy.Max)); {
	case bounded != current:
		return Want{Replicas: bounded, Reason: fmt.Sprintf("it may have %d to %d replicas", policy.Min, policy.Max)}
	case current == 0 || policy.Min == policy.Max:
		return Want{Replicas: current}
	}
	since := later(heldFrom, heardSince(load, now))
	full := func(window time.Duration) bool { return !since.After(now.Add(-window)) }
	stay := Want{Replicas: current, Again: now.Add(projections.LoadStep)}
	if policy.Min == 0 && full(policy.Zero) && !load.Asked.After(now.Add(-policy.Zero)) {
		return Want{Replicas: 0, Reason: "nothing was asked of it in the last " + inSeconds(policy.Zero)}
	}
	if least := needs(policy, load, now.Add(-policy.Up)).least; full(policy.Up) && least.replicas > current && current < policy.Max {
		stay.Replicas, stay.Reason = min(least.replicas, policy.Max), least.String()+" at least in the last "+inSeconds(policy.Up)
		return stay
	}
	most := needs(policy, load, now.Add(-policy.Down)).most
	if fewer := max(policy.Min, 1, most.replicas); full(policy.Down) && fewer < current {
		stay.Replicas, stay.Reason = fewer, most.String()+" at most in the last "+inSeconds(policy.Down)
	}
	return stay
}

// heardSince is since when there are samples without a gap; now if the newest
// is too old.
func heardSince(load projections.LoadHistory, now time.Time) time.Time {
	since := now
	for s := range load.Newest() {
		if since.Sub(s.End) > unheard {
			break
		}
		since = s.Start
	}
	return since
}

// A span is the samples of a window that need the least and the most.
type span struct{ least, most need }

// needs looks at the samples that reach beyond a time, and at the newest of all
// in any case.
func needs(policy domain.Scaling, load projections.LoadHistory, after time.Time) span {
	var found span
	first := true
	for s := range load.Newest() {
		one := needOf(policy.Targets, s)
		switch {
		case first:
			found = span{one, one}
		case !s.End.After(after):
			return found
		case one.replicas < found.least.replicas:
			found.least = one
		case one.replicas > found.most.replicas:
			found.most = one
		}
		first = false
	}
	return found
}

// A need is how many replicas one sample asks for, and by which target.
type need struct {
	replicas   int
	target     string
	load, each float64 // what there was in all, and what one replica should have
}

func needOf(targets map[string]float64, s projections.LoadSample) (most need) {
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
		if each <= 0 { // no replica has said how many slots it has
			continue
		}
		const slack, bound = 1e-9, 1 << 30 // what rounding may add, and what any count stays below
		if n := int(min(math.Ceil(load/each-slack), bound)); most.target == "" || n > most.replicas {
			most = need{n, target, load, each}
		}
	}
	return most
}

// String is the need in words: "requests_per_second 8.1 of 2 a replica".
func (n need) String() string {
	name := n.target
	switch name {
	case "":
		return "no load"
	case domain.CapacityTarget:
		name = "requests in flight"
	}
	return fmt.Sprintf("%s %s of %s a replica", name, short(n.load), short(n.each))
}

// short is a number with three digits or so.
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
