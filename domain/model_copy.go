package domain

import (
	"maps"
	"slices"
	"time"
)

// A ModelCopy is a model's weights in another precision. Preparing it again
// after a failure is a new attempt.
type ModelCopy struct {
	Attempt int       `json:"attempt"` // from 1
	State   string    `json:"state"`
	Status  Status    `json:"status"`
	Files   Files     `json:"files,omitzero"` // when READY
	Time    time.Time `json:"time"`           // of the last change
}

// States of a model's copy.
const (
	CopyPreparing = "PREPARING"
	CopyReady     = "READY"
	CopyFailed    = "FAILED"
)

// StoredPrecisions are those that a model's own weights may have.
var StoredPrecisions = []string{"FP64", "FP32", "BF16", "FP16", "FP8"}

// PreparedPrecisions are those that copies can be made in.
var PreparedPrecisions = []string{"BF16", "FP16", "FP8"}

type ModelPreparing struct {
	Precision string    `json:"precision"`
	Attempt   int       `json:"attempt"`
	Time      time.Time `json:"time"`
}

func (e ModelPreparing) Evolve(m *Model) {
	m.setCopy(e.Precision, ModelCopy{Attempt: e.Attempt, State: CopyPreparing, Status: StatusOf(nil), Time: e.Time})
}

type ModelPrepared struct {
	Precision string    `json:"precision"`
	Attempt   int       `json:"attempt"`
	Files     Files     `json:"files"`
	Time      time.Time `json:"time"`
}

func (e ModelPrepared) Evolve(m *Model) {
	m.setCopy(e.Precision, ModelCopy{Attempt: e.Attempt, State: CopyReady, Status: StatusOf(nil), Files: e.Files, Time: e.Time})
}

type ModelPreparationFailed struct {
	Precision string    `json:"precision"`
	Attempt   int       `json:"attempt"`
	Status    Status    `json:"status"`
	Time      time.Time `json:"time"`
}

func (e ModelPreparationFailed) Evolve(m *Model) {
	m.setCopy(e.Precision, ModelCopy{Attempt: e.Attempt, State: CopyFailed, Status: e.Status, Time: e.Time})
}

func (m *Model) setCopy(precision string, c ModelCopy) {
	m.Copies = maps.Clone(m.Copies)
	if m.Copies == nil {
		m.Copies = map[string]ModelCopy{}
	}
	m.Copies[precision] = c
}

// PrepareModel requests a copy in a precision. One that is there or on its way,
// and the precision that the model has, need no other.
type PrepareModel struct{ Precision string }

func (c PrepareModel) Decide(m Model, now time.Time) (Event[Model], error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	made := m.Copies[c.Precision]
	switch {
	case !m.Exists():
		return nil, gone("model")
	case m.State != ModelReady:
		return nil, precondition("MODEL_NOT_READY", "the model is %s: upload its weights first", m.State)
	case m.Kind == SpeechModel:
		return nil, precondition("SPEECH_MODEL", "a speech model is listened with as it is, in whatever precision its files have: it needs no copy")
	case m.Precision == c.Precision, made.State == CopyPreparing, made.State == CopyReady:
		return nil, nil
	}
	return ModelPreparing{Precision: c.Precision, Attempt: made.Attempt + 1, Time: now}, nil
}

func (c PrepareModel) check() error {
	var v Violations
	known := slices.Contains(Precisions[1:], c.Precision)
	v.Require(known, "precision", "must be one of %s", join(PreparedPrecisions))
	if err := v.Err(); err != nil {
		return err
	}
	if !slices.Contains(PreparedPrecisions, c.Precision) {
		return &Error{Code: Unimplemented, Reason: "NOT_OFFERED",
			Message: "precision: no engine here reads " + c.Precision + ", so no copy is written in it: ask for one of " + join(PreparedPrecisions)}
	}
	return nil
}

// FinishCopy records that an attempt has written the copy.
type FinishCopy struct {
	Precision string
	Attempt   int
	Files     Files
}

func (c FinishCopy) Decide(m Model, now time.Time) (Event[Model], error) {
	if made := m.Copies[c.Precision]; made.State == CopyReady && made.Files.Folder == c.Files.Folder {
		return nil, nil
	}
	if err := m.preparing(c.Precision, c.Attempt); err != nil {
		return nil, err
	}
	return ModelPrepared{Precision: c.Precision, Attempt: c.Attempt, Files: c.Files, Time: now}, nil
}

// FailCopy records why an attempt could not write the copy.
type FailCopy struct {
	Precision string
	Attempt   int
	Status    Status
}

func (c FailCopy) Decide(m Model, now time.Time) (Event[Model], error) {
	if made := m.Copies[c.Precision]; made.State == CopyFailed && made.Attempt == c.Attempt {
		return nil, nil
	}
	if err := m.preparing(c.Precision, c.Attempt); err != nil {
		return nil, err
	}
	return ModelPreparationFailed{Precision: c.Precision, Attempt: c.Attempt, Status: c.Status, Time: now}, nil
}

// preparing is nil while the attempt at a copy is under way.
func (m Model) preparing(precision string, attempt int) error {
	made := m.Copies[precision]
	switch {
	case !m.Exists():
		return gone("model")
	case made.Attempt != attempt || attempt == 0:
		return precondition("COPY_SUPERSEDED", "attempt %d at a copy in %s is not the current one", attempt, precision)
	case made.State != CopyPreparing:
		return precondition("COPY_SETTLED", "the copy in %s is %s already", precision, made.State)
	}
	return nil
}

// Prepared is where the weights in a precision lie: those of the copy when
// there is one that is READY, else the model's own.
func (m Model) Prepared(precision string) Files {
	if made, ok := m.Copies[precision]; ok && made.State == CopyReady {
		return made.Files
	}
	return m.Files
}
