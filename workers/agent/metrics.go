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
	maxRows     = 1 << 20 // maximum number of rows that are kept for an attempt; the oldest are dropped
)

// metrics has the rows of metrics of an attempt, and those of earlier attempts up to the checkpoint
// from which it resumed. The coordinator acknowledges rows by their training step.
type metrics struct {
	rows        []engines.Metrics // metrics by training step, in ascending order of steps
	step, steps int
	acked       int // step of the newest row that the coordinator has acknowledged
	sent        int // step of the newest row in the last heartbeat
}

func (m *metrics) add(row engines.Metrics) {
	row.Values = limitValues(row.Values)
	m.rows = protocol.MergeRows(m.rows, row)
	if extra := len(m.rows) - maxRows; extra > 0 {
		m.rows = slices.Delete(m.rows, 0, extra)
	}
	m.step, m.steps = row.Step, row.Steps
}

// unacknowledged returns up to limit rows for the next heartbeat, from the acknowledged step on.
// That step is included, because an evaluation may have added values to its row. more reports that
// the next heartbeat should be sent immediately, because further rows are left and the coordinator
// has acknowledged the rows of the last heartbeat.
func (m *metrics) unacknowledged(limit int) (rows []engines.Metrics, more bool) {
	at, _ := slices.BinarySearchFunc(m.rows, m.acked, func(r engines.Metrics, step int) int { return r.Step - step })
	end := min(at+limit, len(m.rows))
	if at == end {
		return nil, false
	}
	rows = slices.Clone(m.rows[at:end])
	more = end < len(m.rows) && rows[len(rows)-1].Step > m.sent
	m.sent = rows[len(rows)-1].Step
	return rows, more
}

// acknowledge records up to which step the coordinator has the rows. The step can be lower than
// before, because a coordinator loses the rows when it restarts.
func (m *metrics) acknowledge(step int) {
	m.acked = min(step, m.step)
	m.sent = min(m.sent, m.acked+protocol.MaxRows)
}

// limitValues returns a copy of values with at most protocol.MaxValues entries. It leaves out
// values that JSON cannot represent, and names of more than 128 bytes.
func limitValues(values map[string]float64) map[string]float64 {
	kept := make(map[string]float64, min(len(values), protocol.MaxValues))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if v := values[name]; !math.IsNaN(v) && !math.IsInf(v,
			0) && len(kept) < protocol.MaxValues && len(name) <= 128 {
			kept[name] = v
		}
	}
	return kept
}

// readMetrics reads the metrics rows in the checkpoint in dir, from which the attempt resumes.
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
		if row.Step <= t.assignment.ResumeStep {
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

// encodeMetrics returns the content of the metrics file of an attempt, with the rows of all steps.
func encodeMetrics(t *attempt) ([]byte, error) {
	t.mu.Lock()
	rows := slices.Clone(t.metrics.rows)
	t.mu.Unlock()
	content := []byte{}
	for _, row := range rows {
		line, err := json.Marshal(row)
		if err != nil {
			return nil, err
		}
		content = append(append(content, line...), '\n')
	}
	return content, nil
}

// writeMetrics writes the metrics file into dir, unless the engine has already written one.
func (t *attempt) writeMetrics(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, metricsFile), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err != nil {
		return err
	}
	content, err := encodeMetrics(t)
	if err == nil {
		_, err = f.Write(content)
	}
	return errors.Join(err, f.Close())
}
