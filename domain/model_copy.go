package domain

import (
	"maps"
	"slices"
	"time"
)

// A ModelCopy is a copy of a model's weights in another precision. After a failure, it can be
// prepared again, which is another attempt.
type ModelCopy struct {
	Attempt int       `json:"attempt"` // number of the newest attempt to prepare the copy, from 1
	State   string    `json:"state"`
	Status  Status    `json:"status"`
	Files   Files     `json:"files,omitzero"` // files of the copy; empty until it is READY
	Time    time.Time `json:"time"`           // time of the last change of State
}

// States of a model's copy.
const (
	CopyPreparing = "PREPARING"
	CopyReady     = "READY"
	CopyFailed    = "FAILED"
)

// StoredPrecisions lists the precisions that the weights of an uploaded model may have.
var StoredPrecisions = []string{"FP64", "FP32", "BF16", "FP16", "FP8"}

// PreparedPrecisions lists the precisions in which copies can be prepared.
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
	m.setCopy(e.Precision, ModelCopy{Attempt: e.Attempt, State: CopyReady, Status: StatusOf(nil), Files: e.Files,
		Time: e.Time})
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

// PrepareModel requests a copy of the model in a precision. It records nothing when the copy exists
// or is being prepared, or when the model's own weights have the precision.
type PrepareModel struct{ Precision string }

func (c PrepareModel) Decide(m Model, now time.Time) (Event[Model], error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	existing := m.Copies[c.Precision]
	switch {
	case !m.Exists():
		return nil, notFound("model")
	case m.State != ModelReady:
		return nil, precondition("MODEL_NOT_READY", "the model is %s: upload its weights first", m.State)
	case m.Kind == SpeechModel:
		return nil, precondition("SPEECH_MODEL",
			"speech models are served in the precision of their files: no copy is needed")
	case m.Precision == c.Precision, existing.State == CopyPreparing, existing.State == CopyReady:
		return nil, nil
	}
	return ModelPreparing{Precision: c.Precision, Attempt: existing.Attempt + 1, Time: now}, nil
}

func (c PrepareModel) check() error {
	var v Violations
	known := slices.Contains(Precisions[1:], c.Precision)
	v.Require(known, "precision", "%s", OneOfRule(c.Precision, PreparedPrecisions))
	if err := v.Err(); err != nil {
		return err
	}
	if !slices.Contains(PreparedPrecisions, c.Precision) {
		return &Error{Code: Unimplemented, Reason: "NOT_OFFERED",
			Message: "precision: no engine of this server loads " + c.Precision + ": choose one of " +
				join(PreparedPrecisions)}
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
	if old := m.Copies[c.Precision]; old.State == CopyReady && old.Files.Prefix == c.Files.Prefix {
		return nil, nil
	}
	if err := m.mustPrepare(c.Precision, c.Attempt); err != nil {
		return nil, err
	}
	return ModelPrepared{Precision: c.Precision, Attempt: c.Attempt, Files: c.Files, Time: now}, nil
}

// FailCopy records that an attempt could not write the copy, and why.
type FailCopy struct {
	Precision string
	Attempt   int
	Status    Status
}

func (c FailCopy) Decide(m Model, now time.Time) (Event[Model], error) {
	if old := m.Copies[c.Precision]; old.State == CopyFailed && old.Attempt == c.Attempt {
		return nil, nil
	}
	if err := m.mustPrepare(c.Precision, c.Attempt); err != nil {
		return nil, err
	}
	return ModelPreparationFailed{Precision: c.Precision, Attempt: c.Attempt, Status: c.Status, Time: now}, nil
}

// mustPrepare returns an error unless the given attempt to prepare the copy in the precision is in
// progress.
func (m Model) mustPrepare(precision string, attempt int) error {
	current := m.Copies[precision]
	switch {
	case !m.Exists():
		return notFound("model")
	case current.Attempt != attempt || attempt == 0:
		return precondition("COPY_SUPERSEDED", "attempt %d to prepare the copy in %s is not the current attempt, %d", attempt,
			precision, current.Attempt)
	case current.State != CopyPreparing:
		return precondition("COPY_SETTLED", "the copy in %s is already %s", precision, current.State)
	}
	return nil
}

// FilesIn returns the weights in a precision: those of the copy when it is READY, otherwise the
// model's own.
func (m Model) FilesIn(precision string) Files {
	if c, ok := m.Copies[precision]; ok && c.State == CopyReady {
		return c.Files
	}
	return m.Files
}
