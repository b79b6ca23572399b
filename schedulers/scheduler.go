// Package schedulers decides what to do next: schedulers make pure plans of a consistent view, and
// Run executes them through the log. A scheduler keeps no state. Several control planes may run it
// concurrently, because the log refuses all but the first of their conflicting events.
package schedulers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A Scheduler proposes what to do next. Plan is pure: for the same view and time, it returns the
// same plan.
type Scheduler interface {
	Name() string // Name returns one word; the actor of the scheduler's events is scheduler/NAME.
	Plan(v *projections.View, now time.Time) Plan
}

// A Step is one decision of a scheduler. Run first records the intents in Reserve, each as an event
// of its own, and then Commit. If a reservation or the commit fails after a reservation was
// recorded, Run records Abandon, which prevents a late commit of the same step; later plans release
// the reservations.
type Step struct {
	Reserve []domain.Intent // intents on different resources, in any order
	Commit  domain.Intent
	// intent that prevents a late Commit, after which the reservations are released; nil without
	// Reserve
	Abandon *domain.Intent
	After   bool // the step begins only when all earlier steps of the plan have ended
}

// Intents returns all intents of the step in order.
func (s Step) Intents() []domain.Intent { return append(slices.Clone(s.Reserve), s.Commit) }

// A Plan lists the steps to execute now, in order. Again is when to plan again even if the world
// has not changed; a zero Again means only after a change.
type Plan struct {
	Steps []Step
	Again time.Time
}

func (p *Plan) add(intent domain.Intent) { p.Steps = append(p.Steps, Step{Commit: intent}) }

// then adds a step with one intent that begins only when all earlier steps have ended.
func (p *Plan) then(intent domain.Intent) {
	p.Steps = append(p.Steps, Step{Commit: intent, After: true})
}

// reserve adds a step with the reservations parts, its commit and its abandonment.
func (p *Plan) reserve(parts []domain.Intent, commit, abandon domain.Intent) {
	p.Steps = append(p.Steps, Step{Reserve: parts, Commit: commit, Abandon: &abandon})
}

// planAgainAt requests another plan at t. An earlier time that was requested before has precedence.
func (p *Plan) planAgainAt(t time.Time) {
	if p.Again.IsZero() || t.Before(p.Again) {
		p.Again = t
	}
}

// String formats the plan for test transcripts, with a line for each command. A dash precedes the
// first command of a step, and a bar each further command of the same step. The last command of a
// step is its commit.
func (p Plan) String() string {
	var text strings.Builder
	for _, step := range p.Steps {
		for i, intent := range step.Intents() {
			mark := "-"
			if i > 0 {
				mark = "|"
			}
			fmt.Fprintf(&text, "%s %s\n", mark, intent)
		}
	}
	if len(p.Steps) == 0 {
		text.WriteString("nothing\n")
	}
	if !p.Again.IsZero() {
		fmt.Fprintf(&text, "again %s\n", p.Again.UTC().Format(time.RFC3339))
	}
	return text.String()
}

func (s Step) String() string {
	var lines []string
	for _, intent := range s.Intents() {
		lines = append(lines, intent.String())
	}
	return strings.Join(lines, "; ")
}
