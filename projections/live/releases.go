package live

import (
	"time"

	"anneal/domain"
)

// MaxReleases is the maximum number of gateways times releases whose samples are kept.
const MaxReleases = 5_000

// A ReleaseStep identifies a step of a release.
type ReleaseStep struct {
	Deployment domain.Name `json:"deployment"`
	Created    uint64      `json:"created"` // CreateVersion of the deployment
	Number     int         `json:"number"`  // number of the release
	Step       int         `json:"step"`    // index of the step
}

// After reports whether s is a later step of the same deployment than t.
func (s ReleaseStep) After(t ReleaseStep) bool {
	switch {
	case s.Created != t.Created:
		return s.Created > t.Created
	case s.Number != t.Number:
		return s.Number > t.Number
	}
	return s.Step > t.Step
}

type releaseSamples struct {
	step    ReleaseStep
	samples domain.ReleaseSamples
	at      time.Time
}

// RecordRelease records what a gateway has counted since the beginning of a step. gateway identifies the
// process of the gateway, and is "" for this one. It ignores an older step than the recorded one,
// and fewer samples of the same step, because messages can arrive in another order. The samples must
// not be modified afterwards.
func (s *Status) RecordRelease(gateway string, step ReleaseStep, samples domain.ReleaseSamples, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := string(step.Deployment) + "#" + gateway
	known, ok := s.now.releases.Get(key)
	switch {
	case ok && known.step.After(step):
		return
	case ok && known.step == step && total(samples) < total(known.samples):
		return
	case !ok && s.now.releases.Len() >= MaxReleases:
		evict(s.now.releases, func(r releaseSamples) time.Time { return r.at })
	}
	s.now.releases.Set(key, releaseSamples{step, samples, now})
	s.now.reports++
}

func total(s domain.ReleaseSamples) int64 { return s.Stable.Requests + s.Candidate.Requests }

// Release returns the sum of the samples that all gateways have counted in a step.
func (v View) Release(step ReleaseStep) domain.ReleaseSamples { return v.release(step, true) }

// ReleaseElsewhere is like Release, without the samples of this control plane's gateway.
func (v View) ReleaseElsewhere(step ReleaseStep) domain.ReleaseSamples { return v.release(step, false) }

func (v View) release(step ReleaseStep, own bool) (sum domain.ReleaseSamples) {
	if v.releases == nil {
		return sum
	}
	prefix := string(step.Deployment) + "#"
	v.releases.Ascend(prefix, func(key string, r releaseSamples) bool {
		if len(key) < len(prefix) || key[:len(prefix)] != prefix {
			return false
		}
		if r.step == step && (own || key != prefix) {
			sum = sum.Plus(r.samples)
		}
		return true
	})
	return sum
}
