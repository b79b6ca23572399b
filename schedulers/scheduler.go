// Package schedulers decides what to do next: schedulers make pure plans of a consistent view, and Run
// executes them through the log. A scheduler keeps no state and may run several times concurrently:
// the log refuses the loser.
package schedulers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A Scheduler proposes what to do next. Plan is pure: the same view and time give the same plan.
type Scheduler interface {
	Name() string // one word: the actor of its events is scheduler/NAME
	Plan(v *projections.View, now time.Time) Plan
}

// A Step is one decision. It first reserves what it needs of other resources, each with a separate
// event, and then commits. If a reservation or the commit is refused, Abandon prevents a late commit
// of the same step; later plans release what was reserved.
type Step struct {
	Reserve []domain.Intent // on different resources, in any order
	Commit  domain.Intent
	Abandon *domain.Intent // nil without Reserve
}

// Intents returns all intents of the step in order.
func (s Step) Intents() []domain.Intent { return append(slices.Clone(s.Reserve), s.Commit) }

// A Plan is what to do now, in order, and when to plan again without an event; a zero Again means that
// only an event can change the plan.
type Plan struct {
	Steps []Step
	Again time.Time
}

func (p *Plan) add(intent domain.Intent) { p.Steps = append(p.Steps, Step{Commit: intent}) }

// reserve adds a step with reservations.
func (p *Plan) reserve(parts []domain.Intent, commit, abandon domain.Intent) {
	p.Steps = append(p.Steps, Step{parts, commit, &abandon})
}

// planAgainAt requests another plan at t, or at an earlier requested time.
func (p *Plan) planAgainAt(t time.Time) {
	if p.Again.IsZero() || t.Before(p.Again) {
		p.Again = t
	}
}

// String formats the plan for transcripts: a line for each command; a bar precedes all but the first
// of a step, and the commit is the last.
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
