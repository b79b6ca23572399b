package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	metricsFile = "metrics.jsonl"
	maxRows     = 1 << 20 // per attempt; of a longer one the oldest are let go
)

// metrics are the rows of an attempt, with those of the attempts before it
// when it resumed. The desk acknowledges what has arrived.
type metrics struct {
	rows        []engines.Metrics // in the order of steps
	step, steps int
	acked       int // step of the newest row that arrived
	said        int // step of the newest row in the last beat
}

func (m *metrics) add(row engines.Metrics) {
	row.Values = finite(row.Values)
	m.rows = protocol.MergeRows(m.rows, row)
	if extra := len(m.rows) - maxRows; extra > 0 {
		m.rows = slices.Delete(m.rows, 0, extra)
	}
	m.step, m.steps = row.Step, row.Steps
}

// news are the rows from the acknowledged step on: that row again, because an
// evaluation may have added to it. left tells whether still more wait and the
// last ones arrived.
func (m *metrics) news(room int) (rows []engines.Metrics, left bool) {
	at, _ := slices.BinarySearchFunc(m.rows, m.acked, func(r engines.Metrics, step int) int { return r.Step - step })
	end := min(at+room, len(m.rows))
	if at == end {
		return nil, false
	}
	rows = slices.Clone(m.rows[at:end])
	left = end < len(m.rows) && rows[len(rows)-1].Step > m.said
	m.said = rows[len(rows)-1].Step
	return rows, left
}

// acknowledge may go back: a desk that restarted has forgotten what it heard.
func (m *metrics) acknowledge(step int) {
	m.acked = min(step, m.step)
	m.said = min(m.said, m.acked+protocol.MaxRows)
}

// finite is a copy without what JSON cannot carry, and without what is beyond
// the limit.
func finite(values map[string]float64) map[string]float64 {
	kept := make(map[string]float64, min(len(values), protocol.MaxValues))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if v := values[name]; !math.IsNaN(v) && !math.IsInf(v, 0) && len(kept) < protocol.MaxValues && len(name) <= 128 {
			kept[name] = v
		}
	}
	return kept
}

// readMetrics takes over the rows of the checkpoint that is resumed from.
func (t *attempt) readMetrics(dir string) error {
	f, err := os.Open(filepath.Join(dir, metricsFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	var rows []engines.Metrics
	for decoder := json.NewDecoder(bufio.NewReader(f)); decoder.More(); {
		var row engines.Metrics
		if err := decoder.Decode(&row); err != nil {
			return fmt.Errorf("%s: %w", metricsFile, err)
		}
		if row.Step <= t.order.ResumeStep {
			rows = protocol.MergeRows(rows, row)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.metrics.rows = rows
	if len(rows) > 0 {
		t.metrics.steps = rows[len(rows)-1].Steps
	}
	return nil
}

// writeMetrics puts all rows since step 1 among the results, unless the engine
// did so itself.
func (t *attempt) writeMetrics(dir string) error {
	t.mu.Lock()
	rows := slices.Clone(t.metrics.rows)
	t.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(dir, metricsFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return errors.Join(err, f.Close())
		}
		_, _ = w.Write(append(line, '\n')) // Flush tells
	}
	return errors.Join(w.Flush(), f.Close())
}
