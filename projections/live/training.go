package live

import (
	"time"

	"anneal/domain"
)

// MaxServices is the maximum number of jobs whose use of the training service is recorded.
const MaxServices = 10_000

// TouchTraining records that a client has used the training service of a job: it has sent a
// heartbeat or an operation to this process, or an operation is finished.
func (s *Status) TouchTraining(job domain.Name, at time.Time) {
	if s.useTraining(job, at) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.touched == nil || len(s.touched) >= MaxServices {
			s.touched = map[domain.Name]time.Time{}
		}
		s.touched[job] = at
	}
}

// ObserveTraining records that another control plane has called TouchTraining.
func (s *Status) ObserveTraining(job domain.Name, at time.Time) { s.useTraining(job, at) }

func (s *Status) useTraining(job domain.Name, at time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	last, known := s.now.services.Get(job)
	if known && !at.After(last) {
		return false
	}
	if !known && s.now.services.Len() >= MaxServices {
		evict(s.now.services, func(t time.Time) time.Time { return t })
	}
	s.now.services.Set(job, at)
	s.now.reports++
	return true
}

// TouchedTraining returns the jobs for which TouchTraining was called since the last call of
// TouchedTraining, each with the newest time.
func (s *Status) TouchedTraining() map[domain.Name]time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	touched := s.touched
	s.touched = nil
	return touched
}

// TrainingActivity returns when a client last used the training service of a job. The result is not
// before this process began to receive heartbeats, because earlier use is unknown.
func (v View) TrainingActivity(job domain.Name) time.Time {
	if v.services == nil {
		return v.from
	}
	at, _ := v.services.Get(job)
	return later(at, v.from)
}
