// Package replay answers what-if questions about a recorded period of the log: it runs the
// schedulers with other settings on the recorded workload, with a virtual clock.
//
// A replay folds the log up to the start of the period, and separates the events of the period into
// inputs and decisions. Inputs come from outside of the schedulers: jobs that are created,
// cancelled, paused, resumed and deleted; nodes that register, are lost, cordoned and drained;
// deployments that are created, updated and scaled; settings of accounts; and the run time of each
// job. Decisions are the events that the schedulers recorded, and those that follow from them:
// starts, preemptions, placements, releases. A simulation repeats the inputs at their recorded
// times, and lets the same schedulers decide again.
//
// A simulation is deterministic: the same log and settings give the same result.
package replay

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// The default of Options.Step is the length of the period divided by steps, but at least minStep.
const (
	minStep = 100 * time.Millisecond
	steps   = 4320 // number of steps in a period; for a period of a day, the default of Options.Step is then 20 s
)

// Options select a period and the settings to try.
type Options struct {
	// The period begins after From and ends at To. A zero To stands for the time of the last event,
	// and a zero From for a day before To.
	From, To time.Time
	With     []Settings
	// Step is the minimum time between two plans of a simulation: the schedulers plan once for all
	// events within a step. 0 stands for 20 s if the period is a day, and in proportion for other
	// periods, but at least 0.1 s.
	Step time.Duration
}

// A Report compares what happened in a period with simulations.
type Report struct {
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
	First uint64    `json:"firstPosition,string"` // log position of the first event of the period
	Last  uint64    `json:"lastPosition,string"`
	Step  float64   `json:"step"` // seconds of a step: see Options.Step
	// number of jobs whose run time was estimated, because the log does not show their end
	Estimate int      `json:"estimatedRunTimes"`
	Results  []Result `json:"results"` // recorded period, simulation with the recorded settings, and variants
}

// Names of the first two elements of Report.Results: what happened in the period, and its
// simulation with the recorded settings.
const (
	Recorded  = "recorded"
	Simulated = "simulated"
)

// Run reads the period from the log and simulates it with the recorded settings, and with each of
// the given settings.
func Run(ctx context.Context, log projections.Reader, options Options) (Report, error) {
	if options.To.IsZero() || options.From.IsZero() {
		if err := options.complete(ctx, log); err != nil {
			return Report{}, err
		}
	}
	p, err := read(ctx, log, options.From, options.To)
	if err != nil {
		return Report{}, err
	}
	for _, s := range options.With {
		if err := s.check(p); err != nil {
			return Report{}, err
		}
	}
	step := cmp.Or(options.Step, max(minStep, p.to.Sub(p.from)/steps))
	report := Report{Step: step.Seconds(), From: p.from, To: p.to, First: p.first, Last: p.last, Estimate: p.estimated}
	results := make([]Result, len(options.With)+1)
	errs := make([]error, len(results))
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	var all sync.WaitGroup
	for i := range results {
		settings := Settings{Name: Simulated}
		if i > 0 {
			settings = options.With[i-1]
		}
		s := newSimulation(p, settings, step)
		all.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			results[i], errs[i] = s.run(ctx)
		})
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			return Report{}, fmt.Errorf("simulate %s: %w", results[i].Name, err)
		}
	}
	report.Results = append([]Result{p.recorded}, results...)
	return report, nil
}

// complete sets To and From if they are zero: To to the time of the last event, and From to a day
// before To, but not before the first event.
func (o *Options) complete(ctx context.Context, log projections.Reader) error {
	var first, last time.Time
	for e, err := range log.Read(ctx, everything, 0) {
		if err != nil {
			return err
		}
		if first.IsZero() {
			first = e.Time
		}
		last = later(last, e.Time)
	}
	if last.IsZero() {
		return domain.Errorf(domain.NotFound, "the log has no events to replay")
	}
	if o.To.IsZero() {
		o.To = last
	}
	if o.From.IsZero() {
		o.From = later(o.To.Add(-24*time.Hour), first)
	}
	return nil
}

const everything = "events.>"

// kindAndChange splits the type of an event, such as "dpoJob.started.v1", into the kind and the
// change, which is the same for jobs of all kinds.
func kindAndChange(e eventlog.Event) (kind, change string) {
	kind, change, _ = strings.Cut(e.Type, ".")
	return kind, change
}

// isJob reports whether a collection contains jobs.
func isJob(collection string) bool { return slices.Contains(jobCollections, collection) }

var jobCollections = func() (all []string) {
	for k := range domain.JobKinds() {
		all = append(all, k.CollectionID())
	}
	return all
}()
