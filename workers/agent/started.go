package agent

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

// begun notes on disk which attempts were begun, so that none is begun twice.
//
// An attempt that runs twice, once before and once after its agent was killed,
// could store two different checkpoints of one step under one name. The agent
// is the one place that knows that it began something and survives the loss of
// the desk's memory. So it tells the desk of what an earlier run of it began,
// as lost, until the desk no longer wants it: the job is queued again and goes
// on from its last checkpoint as the next attempt.
type begun struct {
	dir string
	mu  sync.Mutex
	ids map[string]note
}

type note struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
	mine       bool        // of this run
}

// open reads what earlier runs noted.
func (b *begun) open() error {
	b.ids = map[string]note{}
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(b.dir, entry.Name()))
		if err != nil {
			return err
		}
		var n note
		if json.Unmarshal(data, &n) != nil || n.Job == "" {
			// Cut while it was written, before the attempt was begun.
			if err := os.Remove(filepath.Join(b.dir, entry.Name())); err != nil {
				return err
			}
			continue
		}
		b.ids[domain.AllocationID(n.Job, n.Attempt)] = n
	}
	return nil
}

// add notes durably that an attempt is begun.
func (b *begun) add(order protocol.TrainAssignment) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := note{order.Job, order.Attempt, order.CreateTime, true}
	data, err := json.Marshal(n)
	if err != nil {
		return err
	}
	id := order.ID()
	f, err := os.Create(b.path(id))
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close(), syncDir(b.dir)); err != nil {
		return err
	}
	b.ids[id] = n
	return nil
}

// forget is called once nobody wants the attempt any more.
func (b *begun) forget(id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.ids, id)
	_ = os.Remove(b.path(id)) // found again at the next start, and forgotten then
}

func (b *begun) has(id string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, has := b.ids[id]
	return has
}

// lost lists what earlier runs began.
func (b *begun) lost() []protocol.Attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	var lost []protocol.Attempt
	for _, n := range b.ids {
		if !n.mine {
			lost = append(lost, protocol.Attempt{Job: n.Job, Attempt: n.Attempt, CreateTime: n.CreateTime, Phase: protocol.Lost})
		}
	}
	return lost
}

func (b *begun) path(id string) string {
	return filepath.Join(b.dir, strings.NewReplacer("/", "_").Replace(id)+".json")
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
