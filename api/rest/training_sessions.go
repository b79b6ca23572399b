package rest

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// TrainingSession is the wire type of a session of a training service. Clients create sessions at
// the host name of a trainer job: see package api/tinker.
type TrainingSession struct {
	Name         string            `json:"name" api:"output"`
	Job          domain.Name       `json:"job" api:"output"`
	Tags         []string          `json:"tags,omitempty" api:"output"`
	UserMetadata map[string]string `json:"userMetadata,omitempty" api:"output"`
	SDKVersion   string            `json:"sdkVersion,omitempty" api:"output"`
	State        string            `json:"state" api:"output"`
	EndReason    string            `json:"endReason,omitempty" api:"output"`
	EndTime      *time.Time        `json:"endTime,omitempty" api:"output"`
	CreateTime   *time.Time        `json:"createTime,omitempty" api:"output"`
	UpdateTime   *time.Time        `json:"updateTime,omitempty" api:"output"`
	CreatedBy    string            `json:"createdBy,omitempty" api:"output"`
}

var trainingSessions = &resource[domain.TrainingSession, TrainingSession]{
	kind: domain.TrainingSessions, noun: "training session", order: "createTime", reads: request.Read,
	writes: request.Write,
	fields: storedFieldsOf[domain.TrainingSession, TrainingSession]("name", "job", "sdkVersion", "state", "endReason",
		"endTime", "createTime", "updateTime"),
	creator:   func(s *domain.TrainingSession) string { return s.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.TrainingSession]) bool{},
	render: func(v *projections.View, row *projections.Row[domain.TrainingSession], out *TrainingSession) {
		s := &row.State
		*out = TrainingSession{Name: string(row.Name), Job: s.Job, Tags: s.Tags, UserMetadata: s.UserMetadata,
			SDKVersion: s.SDKVersion, State: s.State, EndReason: s.EndReason, EndTime: s.EndTime,
			CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			CreatedBy: creatorOf(v, s.CreatedBy)}
	},
}

var _ = register(trainingSessions.operations)
