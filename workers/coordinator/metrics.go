package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/workers/protocol"
)

// metricsFiles stores the metrics file of each job, and restores its rows in the live status.
type metricsFiles struct {
	world  *projections.World
	blobs  *blobs.Store
	now    func() time.Time
	logger *slog.Logger
}

// metricsFile is the name of the file with the metrics of all steps in a checkpoint or in results.
const metricsFile = "metrics.jsonl"

// publish replaces the metrics file of a job by the one in a checkpoint or in results, which has
// the rows of all steps. It returns the progress in the last row. It also restores rows that the
// live status lost in a restart. When files has no metrics file, or one that is too large, publish
// does nothing and returns nil.
func (m *metricsFiles) publish(ctx context.Context, j job, files fileSource) (*domain.JobProgress, error) {
	rows, err := m.read(ctx, j, files)
	if err != nil || rows == nil {
		return nil, err
	}
	content, err := encodeRows(func(yield func(live.MetricRow) bool) {
		for _, row := range rows {
			if !yield(metricRow(row)) {
				return
			}
		}
	})
	if err == nil {
		err = files.put(ctx, blobs.MetricsFile(j.Name, j.Event), content)
	}
	if err != nil {
		return nil, err
	}
	m.addMissing(j, rows)
	if len(rows) == 0 {
		return nil, nil
	}
	last := rows[len(rows)-1]
	return &domain.JobProgress{Step: last.Step, Steps: last.Steps, Epoch: last.Epoch, Tokens: last.Tokens,
		Metrics: limitValues(last.Values)}, nil
}

// read returns the rows in the metrics file of a checkpoint or of results; nil when there is no
// such file or it is too large.
func (m *metricsFiles) read(ctx context.Context, j job, files fileSource) ([]engines.Metrics, error) {
	const maxBytes = 128 << 20 // maximum size of the file, because all of it is in memory
	size, ok := files.Sizes[metricsFile]
	if content, inline := files.inline[metricsFile]; inline {
		size, ok = int64(len(content)), true
	}
	if size > maxBytes {
		m.logger.Warn("the metrics file of a job is not updated any more, because the file that the engine wrote is too "+
			"large",
			"job", j.Name, "bytes", size, "limit", maxBytes)
	}
	if !ok || size > maxBytes {
		return nil, nil
	}
	r, err := files.open(ctx, metricsFile, 0, -1)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	rows := []engines.Metrics{}
	for decoder := json.NewDecoder(bytes.NewReader(content)); decoder.More(); {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		var row engines.Metrics
		if err := decoder.Decode(&row); err != nil {
			return nil, domain.Errorf(domain.DataLoss, "the file %s that the engine wrote is not valid JSON", metricsFile)
		}
		rows = protocol.MergeRows(rows, row)
	}
	return rows, nil
}

// encodeRows returns the content of a metrics file with rows.
func encodeRows(rows iter.Seq[live.MetricRow]) ([]byte, error) {
	content := []byte{}
	for row := range rows {
		line, err := json.Marshal(flatten(row))
		if err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		content = append(append(content, line...), '\n')
	}
	return content, nil
}

func (m *metricsFiles) store(ctx context.Context, j job, rows iter.Seq[live.MetricRow]) error {
	content, err := encodeRows(rows)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	_, err = m.blobs.Put(ctx, blobs.MetricsFile(j.Name, j.Event), bytes.NewReader(content))
	return err
}

// previewInterval is the minimum time between two metrics files that are stored for an attempt
// before its first checkpoint; previewTimeout is the maximum time for storing one.
const (
	previewInterval = 5 * time.Second
	previewTimeout  = 2 * time.Second
)

// storePreviews stores metrics files for the attempts of a node that have no checkpoint yet, from
// the rows in the live status. An attempt gets its first file after previewInterval. After the
// first checkpoint, publish stores the file.
func (m *metricsFiles) storePreviews(
	ctx context.Context, node string, session *nodeSession, heartbeat protocol.Heartbeat,
) {
	view, now := m.world.View(), m.now()
	for _, a := range heartbeat.Attempts {
		j, ok := jobNamed(view, a.Job)
		if !ok || !j.CreateTime.Equal(a.CreateTime) || !leadBy(j, nodeName(node), a.Attempt) ||
			j.Life.State != domain.JobRunningState || len(j.Life.Checkpoints) > 0 {
			continue
		}
		_, reported := j.progress(view)
		latest, any := view.Live.Latest(a.Job)
		last, known := session.metrics[a.ID()]
		if !known { // not at the start, because many attempts end before the first file is due
			session.metrics[a.ID()] = storedMetrics{time: now}
			continue
		}
		if !reported || !any || latest.Step == last.step || now.Sub(last.time) < previewInterval {
			continue
		}
		session.metrics[a.ID()] = storedMetrics{latest.Step, now}
		once, cancel := context.WithTimeout(ctx, previewTimeout)
		if err := m.store(once, j, view.Live.Metrics(a.Job, 0)); err != nil {
			m.logger.Warn("cannot store the metrics of a job before its first checkpoint: trying again "+
				"later", "job", a.Job, "error", err)
		}
		cancel()
	}
}

// limitValues returns a copy of the values of a row, with at most protocol.MaxValues entries and
// without names of more than maxName bytes.
func limitValues(values map[string]float64) map[string]float64 {
	const maxName = 128 // maximum length of a metric's name in bytes
	kept := make(map[string]float64, min(len(values), protocol.MaxValues))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if len(kept) < protocol.MaxValues && len(name) <= maxName {
			kept[name] = values[name]
		}
	}
	return kept
}

// flatten returns the JSON object for a row in the metrics file. The values of the metrics are
// fields of the object.
func flatten(row live.MetricRow) map[string]any {
	object := map[string]any{}
	for name, value := range row.Values {
		object[name] = value
	}
	object["step"], object["epoch"], object["time"] = row.Step, row.Epoch, row.Time
	object["learning_rate"], object["tokens"] = row.LearningRate, row.Tokens
	return object
}

// addMissing adds to the live status those rows that it lacks, and the progress in the last row.
func (m *metricsFiles) addMissing(j job, rows []engines.Metrics) {
	if len(rows) == 0 {
		return
	}
	view := m.world.View()
	have := make(map[int]bool)
	var latest live.MetricRow
	if _, reported := j.progress(view); reported {
		for row := range view.Live.Metrics(j.Name, 0) {
			have[row.Step] = true
		}
		latest, _ = view.Live.Latest(j.Name)
	}
	if len(have) >= live.MaxMetricRows/2 {
		have = nil // the live status drops old rows at its limit, so only rows after its newest count as missing
	}
	var missing []live.MetricRow
	for _, row := range rows {
		if row.Step > latest.Step || have != nil && !have[row.Step] {
			missing = append(missing, metricRow(row))
		}
	}
	last := rows[len(rows)-1]
	m.world.Live().Report(j.Name, live.Progress{Made: j.CreateTime, Attempt: j.Life.Attempt,
		Step: last.Step, Steps: last.Steps, Epoch: last.Epoch, LearningRate: last.LearningRate,
		Tokens: last.Tokens, Time: m.now()}, missing...)
}
