package domain

import (
	"slices"
	"time"
	"unicode/utf8"
)

// A training session is one client of a training service, which a trainer job with serviceMode
// offers. Its heartbeats are live status.
//
//	(none) --CreateTrainingSession--> ACTIVE
//	ACTIVE --EndTrainingSession-->    ENDED
//	any    --DeleteTrainingSession--> (none), when its job no longer exists
var TrainingSessions = NewKind("trainingSessions", map[string]Event[TrainingSession]{
	"trainingSession.created.v1": TrainingSessionCreated{},
	"trainingSession.ended.v1":   TrainingSessionEnded{},
	"trainingSession.deleted.v1": TrainingSessionDeleted{},
})

// Training session states.
const (
	TrainingSessionActiveState = "ACTIVE"
	TrainingSessionEndedState  = "ENDED"
)

// Limits of the fields that clients of a training service set.
const (
	MaxTrainingTags     = 64       // maximum number of tags of a session
	MaxTrainingTag      = 256      // maximum length of a tag in characters
	MaxTrainingMetadata = 16 << 10 // maximum number of bytes of the keys and values of userMetadata together
	maxSDKVersion       = 64       // maximum length of sdkVersion in characters
)

// TrainingSessionSpec holds the fields of a training session that do not change.
type TrainingSessionSpec struct {
	Job          Name              `json:"job"`      // trainer job that offers the training service
	JobEvent     string            `json:"jobEvent"` // ID of the event that created the job
	Tags         []string          `json:"tags,omitempty"`
	UserMetadata map[string]string `json:"userMetadata,omitempty"`
	SDKVersion   string            `json:"sdkVersion,omitempty"`
	CreatedBy    string            `json:"createdBy,omitempty"`
}

// TrainingSession is the state of one training session.
type TrainingSession struct {
	TrainingSessionSpec
	State     string     `json:"state"`
	EndReason string     `json:"endReason,omitempty"`
	EndTime   *time.Time `json:"endTime,omitempty"`
}

// Exists implements State.
func (s TrainingSession) Exists() bool { return s.State != "" }

// StateName implements StateNamer.
func (s TrainingSession) StateName() string { return s.State }

type TrainingSessionCreated struct {
	TrainingSessionSpec
}

func (e TrainingSessionCreated) Evolve(s *TrainingSession) {
	*s = TrainingSession{TrainingSessionSpec: e.TrainingSessionSpec, State: TrainingSessionActiveState}
}

type TrainingSessionEnded struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e TrainingSessionEnded) Evolve(s *TrainingSession) {
	s.State, s.EndReason, s.EndTime = TrainingSessionEndedState, e.Reason, &e.Time
}

type TrainingSessionDeleted struct{}

func (TrainingSessionDeleted) Evolve(s *TrainingSession) { *s = TrainingSession{} }

// CreateTrainingSession creates a session.
type CreateTrainingSession struct{ TrainingSessionSpec }

func (c CreateTrainingSession) Decide(s TrainingSession, _ time.Time) (Event[TrainingSession], error) {
	if s.Exists() {
		return nil, alreadyExists("a training session")
	}
	var v Violations
	checkTrainingJob(&v, c.Job, c.JobEvent)
	v.Require(len(c.Tags) <= MaxTrainingTags, "tags", "has %d tags: a session must have at most %d", len(c.Tags),
		MaxTrainingTags)
	for i, tag := range c.Tags {
		if n := utf8.RuneCountInString(tag); n > MaxTrainingTag {
			v.Add(indexed("tags", i), "has %d characters: a tag must have at most %d", n, MaxTrainingTag)
			break
		}
	}
	checkTrainingMetadata(&v, "user_metadata", c.UserMetadata)
	v.Require(utf8.RuneCountInString(c.SDKVersion) <= maxSDKVersion, "sdk_version", "must have at most %d characters",
		maxSDKVersion)
	if err := v.Err(); err != nil {
		return nil, err
	}
	c.Tags = slices.Clone(c.Tags)
	return TrainingSessionCreated(c), nil
}

func checkTrainingJob(v *Violations, job Name, event string) {
	_, ok := ParseName(string(job), TrainerJobs.Collection)
	v.Require(ok && event != "", "job", "must be the name of a trainer job, with the event that created it")
}

func checkTrainingMetadata(v *Violations, field string, metadata map[string]string) {
	size := 0
	for key, value := range metadata {
		size += len(key) + len(value)
	}
	v.Require(size <= MaxTrainingMetadata, field, "has %d bytes: keys and values must have at most %d together", size,
		MaxTrainingMetadata)
}

// EndTrainingSession ends a session, for example because its client has sent no heartbeats.
type EndTrainingSession struct{ Reason string }

func (c EndTrainingSession) Decide(s TrainingSession, now time.Time) (Event[TrainingSession], error) {
	switch {
	case !s.Exists():
		return nil, notFound("training session")
	case s.State == TrainingSessionEndedState:
		return nil, nil
	}
	return TrainingSessionEnded{c.Reason, now}, nil
}

// DeleteTrainingSession removes a session whose job no longer exists.
type DeleteTrainingSession struct{}

func (DeleteTrainingSession) Decide(s TrainingSession, _ time.Time) (Event[TrainingSession], error) {
	if !s.Exists() {
		return nil, nil
	}
	return TrainingSessionDeleted{}, nil
}
