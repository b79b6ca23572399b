package domain

import (
	"strings"
	"time"
	"unicode/utf8"
)

// A JobTracking describes the run of a job in an experiment tracker. See TrackerConfig.
type JobTracking struct {
	RunID string `json:"runId,omitempty"` // ID of the run in the tracker; "" until the run exists
	URL   string `json:"url,omitempty"`   // web page of the run; "" until the run exists
	// Problem says why the tracker does not receive the job's metrics; "" when it receives them.
	Problem string `json:"problem,omitempty"`
}

// JobTracked records a change of the job's run in the tracker.
type JobTracked struct{ JobTracking }

func (e JobTracked) Evolve(l *JobLife) { l.Tracking = &e.JobTracking }

// RecordTracking records the run of the job in the tracker, and whether the tracker receives the
// job's metrics. It changes neither the state of the job nor its status, because the training does
// not depend on the tracker.
type RecordTracking struct{ JobTracking }

// Decide implements Command.
func (c RecordTracking) Decide(l JobLife, _ time.Time) (Event[JobLife], error) {
	switch {
	case !l.Exists():
		return nil, notFound("job")
	case l.Tracking != nil && *l.Tracking == c.JobTracking, l.Tracking == nil && c.JobTracking == JobTracking{}:
		return nil, nil
	case l.Deleting():
		return nil, precondition("JOB_STATE", "the job is being deleted")
	}
	return JobTracked(c), nil
}

// MaxTrackerID is the maximum number of characters of the project, entity and run ID of a
// TrackerConfig. trackerReserved are the characters that the names of W&B projects and runs must
// not contain.
const (
	MaxTrackerID    = 128
	trackerReserved = `/\#?%:`
)

func (t *TrackerConfig) check(v *Violations) {
	if t == nil {
		return
	}
	const required = "is required when trackerConfig.enabled is true"
	v.Require(!t.Enabled || t.APIKey != nil, "trackerConfig.apiKey", required)
	v.Require(!t.Enabled || strings.TrimSpace(t.Project) != "", "trackerConfig.project", required)
	for _, one := range []struct{ field, value, reserved string }{
		{"trackerConfig.project", t.Project, trackerReserved}, {"trackerConfig.entity", t.Entity, `\#?%`},
		{"trackerConfig.runId", t.RunID, trackerReserved},
	} {
		n := utf8.RuneCountInString(one.value)
		v.Require(n <= MaxTrackerID, one.field, "must have at most %d characters, not %d", MaxTrackerID, n)
		v.Require(!strings.ContainsAny(one.value, one.reserved), one.field, "must not contain any of %s", one.reserved)
		v.RequireText(one.field, one.value, false)
	}
}
