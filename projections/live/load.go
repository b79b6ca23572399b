package live

import (
	"iter"
	"maps"
	"slices"
	"time"

	"anneal/domain"
)

// A sample covers a LoadStep or a LoadMinute. Samples of a LoadStep are kept for LoadDetail, and
// those of a LoadMinute for a little more than an hour.
const (
	LoadStep      = 5 * time.Second
	LoadDetail    = 15 * time.Minute
	LoadMinute    = time.Minute
	loadRetention = domain.MaxWindow + 2*LoadMinute
	requestStep   = 100 * time.Millisecond
)

// A LoadSample is the load of all replicas of a deployment from Start to End. The sample of a
// LoadStep has the means of the step, and its Peak; the sample of a LoadMinute has the maxima of
// the samples of its steps.
type LoadSample struct {
	Start, End time.Time
	InFlight   float64 // number of requests being served or waiting
	Peak       float64 // maximum number of requests in flight at the same time
	// mean number of requests that one ready replica can serve concurrently; 0 if none is ready
	Slots                 float64
	RequestsPerSecond     float64
	CompletedPerSecond    float64 // number of requests that ended per second, over all replicas
	PromptTokensPerSecond float64
	TokensPerSecond       float64 // number of generated tokens per second, over all replicas
}

// A LoadHistory holds the load of a deployment, as its replicas reported it to this process, in
// samples from the oldest to the newest. Times without reports have no samples. LastRequest is when
// the deployment last received a request, or a replica last reported requests; zero if there was
// none.
type LoadHistory struct {
	Steps       []LoadSample // samples that each cover a LoadStep
	Minutes     []LoadSample // samples that each cover a LoadMinute; the newest of them cover the same time as Steps
	Latest      LoadSample   // Peak, CompletedPerSecond and Slots of the LoadStep that has not ended
	LastRequest time.Time
}

// Newest yields the samples from the newest to the oldest: Steps, and then those Minutes that are
// older than the first step.
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

// A loads value is the LoadHistory of a deployment, with the time of the last report. Views share
// the slices, whose elements therefore never change: samples are appended, and removed at the
// front.
type loads struct {
	LoadHistory
	lastReport time.Time
}

// add appends a sample to Steps and drops old samples. When the sample begins a new minute, add
// calls closeMinute first.
func (l *loads) add(s LoadSample) {
	if n := len(l.Steps); n > 0 {
		if minute := s.Start.Truncate(LoadMinute); minute.After(l.Steps[n-1].Start) {
			l.closeMinute()
		}
	}
	// Samples are dropped up to a full minute, so that Minutes and Steps do not overlap.
	l.Steps = cutBefore(append(l.Steps, s), s.End.Add(-LoadDetail).Truncate(LoadMinute))
}

// closeMinute appends a sample to Minutes: the maxima of the samples in Steps that are in the same
// minute as the newest sample.
func (l *loads) closeMinute() {
	last := l.Steps[len(l.Steps)-1]
	minute := last.Start.Truncate(LoadMinute)
	peak := last
	for i := len(l.Steps) - 2; i >= 0 && !l.Steps[i].Start.Before(minute); i-- {
		s := l.Steps[i]
		peak = LoadSample{s.Start, peak.End, max(peak.InFlight, s.InFlight), max(peak.Peak, s.Peak),
			max(peak.Slots, s.Slots),
			max(peak.RequestsPerSecond, s.RequestsPerSecond), max(peak.CompletedPerSecond, s.CompletedPerSecond),
			max(peak.PromptTokensPerSecond, s.PromptTokensPerSecond), max(peak.TokensPerSecond, s.TokensPerSecond)}
	}
	l.Minutes = cutBefore(append(l.Minutes, peak), last.End.Add(-loadRetention))
}

// cutBefore drops the samples that end at or before t.
func cutBefore(samples []LoadSample, t time.Time) []LoadSample {
	for len(samples) > 0 && !samples[0].End.After(t) {
		samples = samples[1:]
	}
	return samples
}

// A loadStep collects the reports of a deployment's replicas in the current LoadStep. Each replica
// counts with the mean of its reports, weighted by the time that each report covers.
type loadStep struct {
	start time.Time      // time at which the LoadStep begins
	first time.Time      // beginning of the sample: start, or the first report after a time without reports
	of    map[string]int // by replica ID: index of the replica in sums
	sums  []loadSum      // sums of the reports of each replica, in the order of the replicas' first reports

	inFlight, peak int     // sum of the replicas' newest reports of requests in flight, and its maximum so far
	completed      float64 // sum of the replicas' newest CompletedPerSecond
	slots, ready   int     // sum of the slots of the ready replicas, and the number of ready replicas
}

type loadSum struct {
	seconds, inFlight, requests, completed, prompt, tokens float64
	latest, slots                                          int
	// CompletedPerSecond in the newest report of the replica
	rate float64
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
	sum.completed += seconds * load.CompletedPerSecond
	sum.prompt += seconds * load.PromptTokensPerSecond
	sum.tokens += seconds * load.TokensPerSecond
	s.inFlight += load.Active + load.Queued - sum.latest
	s.completed += load.CompletedPerSecond - sum.rate
	sum.latest, sum.rate = load.Active+load.Queued, load.CompletedPerSecond
	s.peak = max(s.peak, s.inFlight)
	if load.Ready && load.Slots > 0 {
		if sum.slots == 0 {
			s.ready++
		}
		s.slots += load.Slots - sum.slots
		sum.slots = load.Slots
	}
}

// latest returns a sample of the current step up to end, the time of its newest report. Only Peak,
// CompletedPerSecond and Slots are set.
func (s *loadStep) latest(end time.Time) LoadSample {
	return LoadSample{Start: s.first, End: end, Peak: float64(s.peak), CompletedPerSecond: max(0, s.completed),
		Slots: float64(s.slots) / float64(max(s.ready, 1))}
}

// sample returns the sample of the complete step. Its rates and InFlight are sums over the
// replicas, Slots is the mean of the replicas, and Peak is the maximum number of requests in
// flight.
func (s *loadStep) sample() LoadSample {
	out := s.latest(s.start.Add(LoadStep))
	out.CompletedPerSecond = 0
	for _, sum := range s.sums {
		if sum.seconds <= 0 {
			continue
		}
		out.InFlight += sum.inFlight / sum.seconds
		out.RequestsPerSecond += sum.requests / sum.seconds
		out.CompletedPerSecond += sum.completed / sum.seconds
		out.PromptTokensPerSecond += sum.prompt / sum.seconds
		out.TokensPerSecond += sum.tokens / sum.seconds
	}
	return out
}

// sampleLoad adds a report of a replica to the history of its deployment. previous is the time of
// the replica's previous report; zero when there is none, so that the report covers no time.
func (s *Status) sampleLoad(deployment domain.Name, replica string, load ReplicaLoad, previous time.Time) {
	history := s.loadsOf(deployment)
	if load.Active+load.Queued > 0 || load.RequestsPerSecond > 0 {
		history.LastRequest = later(history.LastRequest, load.Time)
	}
	history.lastReport = load.Time
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
	if previous.IsZero() || !load.Time.After(previous) {
		previous = load.Time
	}
	step.add(replica, load, previous)
	history.Latest = step.latest(load.Time)
	s.now.loads.Set(deployment, history)
}

// QueueLength records how many requests wait for a replica in the admission queue of a gateway. They
// count as requests in flight of the deployment.
func (s *Status) QueueLength(deployment domain.Name, gateway string, waiting int, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := replicaKey(deployment, gateway)
	if _, known := s.queues[key]; !known && len(s.queues) >= MaxReplicas {
		maps.DeleteFunc(s.queues, func(_ string, last time.Time) bool { return at.Sub(last) > LoadMinute })
		if len(s.queues) >= MaxReplicas {
			return
		}
	}
	s.sampleLoad(deployment, "gateway "+gateway, ReplicaLoad{Queued: waiting, Time: at}, s.queues[key])
	s.queues[key] = at
	s.now.reports++
}

// loadsOf returns the load history of a deployment. If there is none, and MaxLoads histories are
// kept, it first removes the history with the oldest report.
func (s *Status) loadsOf(deployment domain.Name) loads {
	history, known := s.now.loads.Get(deployment)
	if !known && s.now.loads.Len() >= MaxLoads {
		delete(s.steps, evict(s.now.loads, func(l loads) time.Time { return l.lastReport }))
	}
	return history
}

// RecordRequest records that a deployment received a request at the given time, so that the request
// counts before a replica reports it. It ignores a request less than a tenth of a second after the
// recorded one.
func (s *Status) RecordRequest(deployment domain.Name, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	history := s.loadsOf(deployment)
	if now.Sub(history.LastRequest) < requestStep {
		return // ignore it: each change of the status makes a new View necessary, which would slow down requests
	}
	history.LastRequest, history.lastReport = now, later(history.lastReport, now)
	s.now.loads.Set(deployment, history)
	s.now.reports++
}

// Loads returns the load of a deployment over the last hour, as far as it was reported to this
// process.
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
