package projections

import (
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"anneal/domain"
)

// A line is the one canonical form of a row: what snapshots hold and digests
// hash. Of what no longer exists it has the name and the version only.
type line struct {
	Name        domain.Name     `json:"name"`
	Version     uint64          `json:"version"`
	CreateTime  *time.Time      `json:"createTime,omitempty"`
	CreateEvent string          `json:"createEvent,omitempty"`
	UpdateTime  *time.Time      `json:"updateTime,omitempty"`
	State       json.RawMessage `json:"state,omitempty"`
}

// frozen is a table of any kind, in a view.
type frozen interface {
	// Len is the number of rows.
	Len() int
	// state is that of a resource; false when it does not exist.
	state(domain.Name) (any, bool)
	// user reports whether the rows implement domain.User.
	user() bool
	// uses yields each resource with the names of what it works with.
	uses() iter.Seq2[domain.Name, domain.Name]
	// lines hands every row's line to yield, in the order of names, and after
	// them those of what no longer exists.
	lines(yield func(line []byte, gone bool) error) error
}

func (t *Table[S]) lines(yield func(line []byte, gone bool) error) error {
	var err error
	t.rows.Scan(func(_ domain.Name, row *Row[S]) bool {
		var state, text []byte
		if state, err = json.Marshal(row.State); err == nil {
			text, err = json.Marshal(line{row.Name, row.Version, &row.CreateTime, row.CreateEvent, &row.UpdateTime, state})
		}
		if err != nil {
			err = fmt.Errorf("%s cannot be written down: %w", row.Name, err)
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

// restore puts a line back.
func (f *fold[S]) restore(l line) error {
	f.changed = true
	if l.State == nil {
		f.table.gone.Set(l.Name, l.Version)
		return nil
	}
	row := &Row[S]{Name: l.Name, Version: l.Version, CreateEvent: l.CreateEvent, generation: f.generation}
	if l.CreateTime == nil || l.UpdateTime == nil || l.CreateEvent == "" {
		return fmt.Errorf("%s lacks its times or its first event", l.Name)
	}
	row.CreateTime, row.UpdateTime = canonicalTime(*l.CreateTime), canonicalTime(*l.UpdateTime)
	if err := json.Unmarshal(l.State, &row.State); err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	f.table.put(row, true)
	return nil
}
