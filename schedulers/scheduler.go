// Package schedulers says what comes next: pure plans over a consistent view,
// and the loop that carries them out through the log. A scheduler keeps no
// state and may run twice at once: the log refuses the loser.
package schedulers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// A Scheduler proposes what to do next in the world. Plan is pure: it reads no
// clock and draws nothing, and the same view and time give the same plan.
type Scheduler interface {
	Name() string // one word: the actor of its events is scheduler/NAME
	Plan(v *projections.View, now time.Time) Plan
}

// A Step is one decision. Where it needs parts of other resources it reserves
// them first, each by an event of its own; then Commit decides. When a
// reservation or the commit is refused, Abandon makes sure that no late commit
// of the same step goes through; what was reserved is released by later plans.
type Step struct {
	Reserve []domain.Intent // on different resources, in any order
	Commit  domain.Intent
	Abandon *domain.Intent // nil without Reserve
}

// Intents are what the step records when nothing is refused, in order.
func (s Step) Intents() []domain.Intent { return append(slices.Clone(s.Reserve), s.Commit) }

// A Plan is what to do now, in order, and when to look again although nothing
// happens; a zero Again means that only an event can change the plan.
type Plan struct {
	Steps []Step
	Again time.Time
}

func (p *Plan) add(intent domain.Intent) { p.Steps = append(p.Steps, Step{Commit: intent}) }

// reserve plans a step that needs parts of other resources.
func (p *Plan) reserve(parts []domain.Intent, commit, abandon domain.Intent) {
	p.Steps = append(p.Steps, Step{parts, commit, &abandon})
}

// lookAgain asks for another plan at t, or earlier if that was asked for.
func (p *Plan) lookAgain(t time.Time) {
	if p.Again.IsZero() || t.Before(p.Again) {
		p.Again = t
	}
}

// String is the plan as transcripts show it: a line for each command, those of
// one step joined by a bar in front, the commit last.
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
