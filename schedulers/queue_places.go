package schedulers

import (
	"sync"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/queue"
)

// wait returns what is recorded when a job begins to wait for capacity: its situation and, if the
// history is long enough, an estimate of its wait. It returns nil for a job whose wait is
// recorded already, and for a job that starts as soon as preempted jobs have stopped.
func (q *jobQueue) wait(w waitingJob) *domain.JobWait {
	if w.Life.Wait != nil {
		return nil
	}
	now := q.now.Unix()
	if q.places == nil {
		q.places = q.queue.Places(now)
	}
	ahead, started := q.places[string(w.Name)].Ahead, q.view.Waits.Started(commonType(w.need.Resources), now)
	situation, ok := q.queue.Situation(string(w.Name), now, ahead, started)
	if !ok {
		return nil
	}
	situation.Again = w.Life.QueueTime != nil && w.Life.Arrival != nil && w.Life.QueueTime.After(*w.Life.Arrival)
	wait := &domain.JobWait{Situation: situation}
	if estimate, ok := q.view.Waits.Estimate(situation); ok {
		wait.Estimate = &estimate
	}
	return wait
}

// Places computes the positions of waiting jobs and replicas in the queue. It caches all of them
// for one log position and one second. It is safe for concurrent use.
type Places struct {
	mu       sync.Mutex
	position uint64
	second   int64
	places   map[string]queue.Place
}

// Places implements rest.Queue.
func (p *Places) Places(v *projections.View, now time.Time,
) func(resource domain.Name) (position, length int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.places == nil || p.position != v.Position || p.second != now.Unix() {
		p.places, p.position, p.second = placesOf(v, now), v.Position, now.Unix()
	}
	places := p.places
	return func(resource domain.Name) (position, length int, ok bool) {
		place, ok := places[string(resource)]
		if !ok {
			place, ok = places[missingReplicaID(resource, 1)]
		}
		return place.Position, place.Length, ok
	}
}

// placesOf returns the places of all jobs that are in the queue according to their status, and of
// all missing replicas. It does not validate the resources that the jobs name.
func placesOf(v *projections.View, now time.Time) map[string]queue.Place {
	fleet := fleetOf(v)
	var waiting []waitingJob
	for j := range jobs(v) {
		if j.Life.Queued() && !j.spec().AwaitsStep() {
			waiting = append(waiting, waitingJob{j, fleet.needOf(v, j.Name, j.spec())})
		}
	}
	if len(waiting) == 0 && !lacksReplicas(v) {
		return map[string]queue.Place{}
	}
	return newJobQueue(v, fleet, now, waiting).queue.Places(now.Unix())
}
