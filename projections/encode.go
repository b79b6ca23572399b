package projections

import (
	"encoding/json"
	"fmt"
	"time"

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

// lines yields the lines of all rows ordered by name, and then the lines of deleted resources
// ordered by name, with gone set.
func (t *table) lines(yield func(name domain.Name, line []byte, gone bool) error) error {
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
	t.gone.Scan(func(name domain.Name, version uint64) bool {
		var text []byte
		if text, err = json.Marshal(line{Name: name, Version: version}); err == nil {
			err = yield(name, text, true)
		}
		return err == nil
	})
	return err
}

// encodeRow returns the line of a row.
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

// rowOf returns the row of a line of a resource that exists.
func rowOf(kind domain.AnyKind, l line) (domain.AnyRow, error) {
	if l.CreateTime == nil || l.UpdateTime == nil || l.CreateEvent == "" {
		return nil, fmt.Errorf("%s lacks its create time, update time or the ID of the event that created it", l.Name)
	}
	row := kind.NewRow(l.Name)
	head := domain.Row[struct{}]{Name: l.Name, Version: l.Version, CreateVersion: l.CreateAt, ReserveVersion: l.ReserveAt,
		CreateEvent: l.CreateEvent, CreateTime: canonicalTime(*l.CreateTime), UpdateTime: canonicalTime(*l.UpdateTime)}
	if err := row.Restore(head, l.State); err != nil {
		return nil, fmt.Errorf("%s: %w", l.Name, err)
	}
	return row, nil
}
