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
func (t *table) lines(yield func(line []byte, gone bool) error) error {
	var err error
	t.rows.Scan(func(_ domain.Name, one cell) bool {
		var state, text []byte
		head := one.row.Head()
		if state, err = json.Marshal(one.row.Value()); err == nil {
			text, err = json.Marshal(line{head.Name, head.Version, &head.CreateTime, head.CreateEvent, head.CreateVersion,
				head.ReserveVersion, &head.UpdateTime, state})
		}
		if err != nil {
			err = fmt.Errorf("encode %s: %w", head.Name, err)
			return false
		}
		err = yield(text, false)
		return err == nil
	})
	if err != nil {
		return err
	}
	t.gone.Scan(func(name domain.Name, version uint64) bool {
		var text []byte
		if text, err = json.Marshal(line{Name: name, Version: version}); err == nil {
			err = yield(text, true)
		}
		return err == nil
	})
	return err
}
