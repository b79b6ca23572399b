package projections

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	jsonv2 "github.com/go-json-experiment/json"
	jsonv1 "github.com/go-json-experiment/json/v1"

	"anneal/domain"
)

// A line is the canonical form of a row, which is written to snapshots and hashed in digests. The
// line of a deleted resource has only the name and the version.
type line struct {
	Name        domain.Name     `json:"name"`
	Version     uint64          `json:"version"`
	CreateTime  *time.Time      `json:"createTime,omitempty"`
	CreateEvent string          `json:"createEvent,omitempty"`
	CreateAt    uint64          `json:"createVersion,omitempty"`
	ReserveAt   uint64          `json:"reserveVersion,omitempty"`
	UpdateTime  *time.Time      `json:"updateTime,omitempty"`
	State       json.RawMessage `json:"state,omitempty"`
}

// lines yields the lines of all rows, ordered by name, and then the lines of deleted resources,
// ordered by name, with deleted set.
func (t *table) lines(yield func(name domain.Name, line []byte, deleted bool) error) error {
	t = t.of(everyAccount)
	var err error
	t.rows.Scan(func(name domain.Name, one cell) bool {
		var text []byte
		if text, err = encodeRow(one.row); err == nil {
			err = yield(name, text, false)
		}
		return err == nil
	})
	if err != nil {
		return err
	}
	t.deleted.Scan(func(name domain.Name, version uint64) bool {
		var text []byte
		if text, err = json.Marshal(line{Name: name, Version: version}); err == nil {
			err = yield(name, text, true)
		}
		return err == nil
	})
	return err
}

// encodeRow returns the line of a row as JSON.
func encodeRow(row domain.AnyRow) ([]byte, error) {
	var text []byte
	head := row.Head()
	state, err := json.Marshal(row.Value())
	if err == nil {
		text, err = json.Marshal(line{head.Name, head.Version, &head.CreateTime, head.CreateEvent, head.CreateVersion,
			head.ReserveVersion, &head.UpdateTime, state})
	}
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", head.Name, err)
	}
	return text, nil
}

// lineName returns the resource name in the JSON of a line, whose first field is the name.
func lineName(text []byte) (domain.Name, error) {
	rest, ok := bytes.CutPrefix(text, []byte(`{"name":"`))
	name, _, closed := bytes.Cut(rest, []byte(`"`))
	if !ok || !closed {
		return "", errors.New("a line does not begin with the name of its resource")
	}
	return domain.Name(name), nil
}

// A rowLine is a line whose state is decoded directly into a row.
type rowLine struct {
	line
	State any `json:"state"` // pointer to the row's state, into which the JSON is decoded
}

// decodeOptions are the options of encoding/json, which encoded the rows, without the extra pass
// that validates a line before it is decoded. The pass is not needed, because decode drops the row
// of an invalid line.
var decodeOptions = jsonv2.JoinOptions(jsonv1.DefaultOptionsV1(), jsonv1.ReportErrorsWithLegacySemantics(false))

// A rowDecoder decodes one row after another, and reuses its own memory for each. The returned rows
// stay valid.
type rowDecoder struct {
	line             rowLine
	created, updated time.Time
}

// decode returns the row and the version in the JSON of a line of the named resource; a nil row if the
// line is that of a deleted resource.
func (d *rowDecoder) decode(kind domain.AnyKind, name domain.Name, text []byte) (row domain.AnyRow, version uint64,
	err error) {
	row = kind.NewRow(name)
	d.created, d.updated = time.Time{}, time.Time{}
	d.line = rowLine{line: line{CreateTime: &d.created, UpdateTime: &d.updated}, State: row.Pointer()}
	l := &d.line
	if err := jsonv2.Unmarshal(text, l, decodeOptions); err != nil {
		return nil, 0, err
	}
	switch exists := bytes.Contains(text, []byte(`,"state":{`)); {
	case l.Name != name:
		return nil, 0, fmt.Errorf("the line that begins with the name %s has another name, %s", name, l.Name)
	case !exists:
		return nil, l.Version, nil
	case d.created.IsZero() || d.updated.IsZero() || l.CreateEvent == "":
		return nil, 0, fmt.Errorf(
			"the line of %s lacks the create time, the update time or the ID of the event that created it", name)
	}
	row.SetHead(domain.Row[struct{}]{Name: name, Version: l.Version, CreateVersion: l.CreateAt,
		ReserveVersion: l.ReserveAt, CreateEvent: l.CreateEvent, CreateTime: canonicalTime(d.created),
		UpdateTime: canonicalTime(d.updated)})
	return row, l.Version, nil
}
