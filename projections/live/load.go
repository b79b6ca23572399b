package live

import (
	"iter"
	"slices"
	"time"

	"anneal/domain"
)

// How long loads are remembered: in samples of LoadStep for LoadDetail, and
// before that, for an hour and a little, in samples of LoadMinute.
const (
	LoadStep    = 5 * time.Second
	LoadDetail  = 15 * time.Minute
	LoadMinute  = time.Minute
	loadMemory  = domain.MaxWindow + 2*LoadMinute
	requestStep = 100 * time.Millisecond
)

// A LoadSample is how busy a deployment was from Start to End: its replicas
// together, on the average of a LoadStep, or at the peak of a LoadMinute.
type LoadSample struct {
	Start, End            time.Time
	InFlight              float64 // requests being answered or waiting
	Slots                 float64 // of one replica; 0 while none was ready
	RequestsPerSecond     float64
	PromptTokensPerSecond float64
	TokensPerSecond       float64 // generated
}

// A LoadHistory is the reports to this process of a deployment's load, in samples
// that are oldest first; where nothing was reported there is a gap. LastRequest is when
// the deployment was last asked anything, or last heard to be busy; zero if
// never.
type LoadHistory struct {
	Steps       []LoadSample // of a LoadStep
	Minutes     []LoadSample // of a LoadMinute; what Steps also tell is in both
	LastRequest time.Time
}

// Newest yields the samples from the newest to the oldest, none of which
// overlap.
func (h LoadHistory) Newest() iter.Seq[LoadSample] {
	return func(yield func(LoadSample) bool) {
		for _, s := range slices.Backward(h.Steps) {
			if !yield(s) {
				return
			}
		}
		for _, s := range slices.Backward(h.Minutes) {
			if len(h.Steps) > 0 && s.End.After(h.Steps[0].Start) {
				continue
			}
			if !yield(s) {
				return
			}
		}
	}
}

// loads is a LoadHistory in the making. Its slices are shared with views: they
// are only ever appended to, and cut in front.
type loads struct {
	LoadHistory
	heard time.Time
}

// add appends a sample, and forgets what is too old. A minute that is over is
// kept as its peak.
func (l *loads) add(s LoadSample) {
	if n := len(l.Steps); n > 0 {
		if minute := s.Start.Truncate(LoadMinute); minute.After(l.Steps[n-1].Start) {
			l.closeMinute()
		}
	}
	l.Steps = cutBefore(append(l.Steps, s), s.End.Add(-LoadDetail).Truncate(LoadMinute)) // whole minutes, as there are of Minutes
}

// closeMinute makes a coarse sample of the minute of the newest.
func (l *loads) closeMinute() {
	last := l.Steps[len(l.Steps)-1]
	minute := last.Start.Truncate(LoadMinute)
	peak := last
	for i := len(l.Steps) - 2; i >= 0 && !l.Steps[i].Start.Before(minute); i-- {
		one := l.Steps[i]
		peak = LoadSample{one.Start, peak.End, max(peak.InFlight, one.InFlight), max(peak.Slots, one.Slots),
			max(peak.RequestsPerSecond, one.RequestsPerSecond), max(peak.PromptTokensPerSecond, one.PromptTokensPerSecond), max(peak.TokensPerSecond, one.TokensPerSecond)}
	}
	l.Minutes = cutBefore(append(l.Minutes, peak), last.End.Add(-loadMemory))
}

// cutBefore drops the samples that had ended by a time.
func cutBefore(samples []LoadSample, t time.Time) []LoadSample {
	for len(samples) > 0 && !samples[0].End.After(t) {
		samples = samples[1:]
	}
	return samples
}

// A loadStep is the sample in progress. Each replica counts with
// the mean of its reports, weighted with the time that each of them is about.
type loadStep struct {
	start time.Time      // of the step's time
	first time.Time      // of its first report, later than start after a gap
	of    map[string]int // index into sums, by replica
	sums  []loadSum      // in the order in which replicas reported
}

type loadSum struct {
	seconds, inFlight, requests, prompt, tokens float64
	slots                                       int
}

func (s *loadStep) add(replica string, load ReplicaLoad, since time.Time) {
	i, known := s.of[replica]
	if !known {
		i = len(s.sums)
		s.of[replica] = i
		s.sums = append(s.sums, loadSum{})
	}
	sum, seconds := &s.sums[i], load.Time.Sub(since).Seconds()
	sum.seconds += seconds
	sum.inFlight += seconds * float64(load.Active+load.Queued)
	sum.requests += seconds * load.RequestsPerSecond
	sum.prompt += seconds * load.PromptTokensPerSecond
	sum.tokens += seconds * load.TokensPerSecond
	if load.Ready {
		sum.slots = load.Slots
	}
}

// sample is the step's replicas together.
func (s *loadStep) sample() LoadSample {
	out := LoadSample{Start: s.first, End: s.start.Add(LoadStep)}
	ready := 0.0
	for _, sum := range s.sums {
		if sum.slots > 0 {
			out.Slots += float64(sum.slots)
			ready++
		}
		if sum.seconds <= 0 {
			continue
		}
		out.InFlight += sum.inFlight / sum.seconds
		out.RequestsPerSecond += sum.requests / sum.seconds
		out.PromptTokensPerSecond += sum.prompt / sum.seconds
		out.TokensPerSecond += sum.tokens / sum.seconds
	}
	out.Slots /= max(ready, 1)
	return out
}

// sampleLoad adds a replica's report to its deployment's history. since is when
// the replica reported before; zero, and the report counts no time.
func (s *Status) sampleLoad(deployment domain.Name, replica string, load ReplicaLoad, since time.Time) {
	history := s.loadsOf(deployment)
	if load.Active+load.Queued > 0 || load.RequestsPerSecond > 0 {
		history.LastRequest = later(history.LastRequest, load.Time)
	}
	history.heard = load.Time
	step := s.steps[deployment]
	start := load.Time.Truncate(LoadStep)
	if step == nil || start.After(step.start) {
		first := load.Time
		if step != nil {
			history.add(step.sample())
			if start.Sub(step.start) == LoadStep {
				first = start
			}
		}
		step = &loadStep{start: start, first: first, of: map[string]int{}}
		s.steps[deployment] = step
	}
	if since.IsZero() || !load.Time.After(since) {
		since = load.Time
	}
	step.add(replica, load, since)
	s.now.loads.Set(deployment, history)
}

// loadsOf finds a deployment's history, and evicts one for a new one.
func (s *Status) loadsOf(deployment domain.Name) loads {
	history, known := s.now.loads.Get(deployment)
	if !known && s.now.loads.Len() >= MaxLoads {
		delete(s.steps, evict(s.now.loads, func(l loads) time.Time { return l.heard }))
	}
	return history
}

// RecordRequest records that a deployment received a request at a time, before any
// replica has heard of it; to a tenth of a second.
func (s *Status) RecordRequest(deployment domain.Name, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	history := s.loadsOf(deployment)
	if at.Sub(history.LastRequest) < requestStep {
		return // as good as known, and no new view is needed for it
	}
	history.LastRequest, history.heard = at, later(history.heard, at)
	s.now.loads.Set(deployment, history)
	s.now.reports++
}

// Loads is what is known of a deployment's load over the last hour.
func (v View) Loads(deployment domain.Name) LoadHistory {
	if v.loads == nil {
		return LoadHistory{}
	}
	one, _ := v.loads.Get(deployment)
	return one.LoadHistory
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
