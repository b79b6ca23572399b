package replay

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A workload describes how long a job has to run on its nodes, from the recorded events.
type workload struct {
	name     domain.Name
	segments []*segment
	saves    time.Duration // mean time between the job's checkpoints; 0 if it records none
	ahead    time.Time     // time of the last input, such as a resume, after which an ended job runs again

	began       time.Time // start of the running attempt; zero if none runs
	saved       time.Time // time of the attempt's last checkpoint, or began
	stops       bool      // the attempt was requested to stop
	checkpoints int
	sum         time.Duration // sum of the times between checkpoints, to compute saves
}

// A segment is the work of a job until it completes or fails, or until its train step is finished.
// When the job is resumed after a failure, or gets another train step, the next segment begins.
type segment struct {
	work    time.Duration   // run time that the attempts of the segment need together, without lost work
	lower   time.Duration   // minimum of work, in a segment that did not end in the log
	crashes []time.Duration // for each attempt that crashed, the time from its start to the crash
	end     end
	failure domain.Status
	output  domain.Name
}

// An end is how a segment ends.
type end int

const (
	unknown end = iota // the log does not show the end, so the work is estimated
	completes
	fails
)

func newWorkload(name domain.Name) *workload {
	return &workload{name: name, segments: []*segment{{}}}
}

// resumeAt sets the attempt that is running when the period begins, from the state of the job.
func (w *workload) resumeAt(life *domain.JobLife) {
	if !life.Active() || life.StartTime == nil {
		return
	}
	w.began, w.saved, w.stops = *life.StartTime, *life.StartTime, life.Stopping()
	if last, ok := life.LastCheckpoint(); ok && last.Attempt == life.Attempt {
		w.saved = last.Time
	}
}

func (w *workload) current() *segment { return w.segments[len(w.segments)-1] }

// observe adds a recorded event of the job, at the given time, to the workload.
func (w *workload) observe(e eventlog.Event, eventTime time.Time) {
	s := w.current()
	switch _, change := kindAndChange(e); change {
	case "started.v1":
		w.began, w.saved, w.stops = eventTime, eventTime, false
	case "checkpointed.v1":
		if !w.began.IsZero() {
			w.checkpoints++
			w.sum += eventTime.Sub(w.saved)
			w.saved = eventTime
		}
	case "preempting.v1", "pausing.v1", "cancelling.v1":
		w.stops = true
	case "requeued.v1":
		if !w.began.IsZero() && !w.stops && !strings.HasPrefix(e.Actor, "scheduler/") {
			s.crashes = append(s.crashes, eventTime.Sub(w.began))
		}
		w.stop()
	case "paused.v1", "cancelled.v1", "expired.v1", "deleting.v1":
		s.lower = max(s.lower, s.work+w.elapsed(eventTime))
		w.stop()
	case "resultsStored.v1", "completed.v1", "stepFinished.v1":
		if !w.began.IsZero() {
			s.work, s.end, s.output = s.work+w.elapsed(eventTime), completes, outputOf(e)
			w.began = time.Time{}
		}
	case "failed.v1":
		if !w.began.IsZero() { // if no attempt was running, a scheduler failed the job
			s.work, s.end, s.failure = s.work+w.elapsed(eventTime), fails, statusOf(e)
			w.began = time.Time{}
		}
	}
	if n := time.Duration(w.checkpoints); n > 0 {
		w.saves = w.sum / n
	}
}

// next begins another segment if the current segment has ended.
func (w *workload) next() {
	if w.current().end != unknown {
		w.segments = append(w.segments, &segment{})
	}
}

// stop ends the running attempt. Its work until the last checkpoint counts.
func (w *workload) stop() {
	if !w.began.IsZero() {
		w.current().work += max(0, w.saved.Sub(w.began))
	}
	w.began = time.Time{}
}

func (w *workload) elapsed(at time.Time) time.Duration {
	if w.began.IsZero() {
		return 0
	}
	return max(0, at.Sub(w.began))
}

// open reports whether the end of the current segment is not known yet, so that later events can
// show more of it.
func (w *workload) open() bool { return w.current().end == unknown }

// estimate sets the work of the segments that did not end in the log. It takes the median of the
// ended jobs of the same account and kind, or else of the same kind, or else of all jobs, but at
// least a tenth more than segment.lower. It returns the number of jobs with such segments.
func estimate(all []*workload, last time.Time, period time.Duration) (estimated int) {
	known := map[string][]time.Duration{}
	keys := func(w *workload) []string {
		return []string{w.name.Account() + " " + w.name.Collection(), w.name.Collection(), ""}
	}
	for _, w := range all {
		for _, s := range w.segments {
			if s.end == completes {
				for _, key := range keys(w) {
					known[key] = append(known[key], s.work)
				}
			}
		}
	}
	for _, times := range known {
		slices.Sort(times)
	}
	for _, w := range all {
		s := w.current()
		if s.end != unknown {
			continue
		}
		estimated++
		median := period
		for _, key := range keys(w) {
			if times := known[key]; len(times) > 0 {
				median = times[len(times)/2]
				break
			}
		}
		lower := max(s.lower, s.work+w.elapsed(last))
		s.work = max(median, lower+lower/10)
	}
	return estimated
}

// A median collects durations, to compute their median.
type median []time.Duration

func (m median) value(otherwise time.Duration) time.Duration {
	if len(m) == 0 {
		return otherwise
	}
	sorted := slices.SortedFunc(slices.Values(m), cmp.Compare[time.Duration])
	return sorted[len(sorted)/2]
}
