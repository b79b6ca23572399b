package coordinator

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/protocol"
)

// publishMetrics makes the metrics in a folder the job's: each step once, in
// order. The folder's are complete since step 1, so they also fill what the
// pulse lacks after a restart. It answers how far the last of them is.
func (d *Coordinator) publishMetrics(ctx context.Context, j job, files domain.Files) (*domain.JobProgress, error) {
	const (
		metricsFile = "metrics.jsonl"
		maxMetrics  = 128 << 20 // bytes: all of it is held in memory
	)
	size, ok := files.Sizes[metricsFile]
	if size > maxMetrics {
		d.log.Warn("the job's metrics file stays as it is: what came with the checkpoint is too large", "job", j.Name, "bytes", size, "most", maxMetrics)
	}
	if !ok || size > maxMetrics {
		return nil, nil
	}
	r, err := d.Blobs.Get(ctx, files.Folder+metricsFile)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		return nil, err
	}
	var rows []engines.Metrics
	for decoder := json.NewDecoder(bytes.NewReader(content)); decoder.More() && ctx.Err() == nil; {
		var row engines.Metrics
		if err := decoder.Decode(&row); err != nil {
			return nil, domain.Errorf(domain.DataLoss, "the metrics that the engine left cannot be read")
		}
		rows = protocol.MergeRows(rows, row)
	}
	if err := d.storeMetrics(ctx, j, func(yield func(projections.MetricRow) bool) {
		for _, row := range rows {
			if !yield(rowOf(row)) {
				return
			}
		}
	}); err != nil {
		return nil, err
	}
	d.feelRows(j, rows)
	if len(rows) == 0 {
		return nil, nil
	}
	last := rows[len(rows)-1]
	return &domain.JobProgress{Step: last.Step, Steps: last.Steps, Epoch: last.Epoch, Tokens: last.Tokens, Metrics: figures(last.Values)}, nil
}

func (d *Coordinator) storeMetrics(ctx context.Context, j job, rows iter.Seq[projections.MetricRow]) error {
	var joined bytes.Buffer
	for row := range rows {
		line, err := json.Marshal(flat(row))
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		joined.Write(append(line, '\n'))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := d.Blobs.Put(ctx, blobs.MetricsFile(j.Name, j.Event), &joined)
	return err
}

// What an attempt is shown of before its first checkpoint: how often, and how
// long the store may take.
const (
	showEvery  = 5 * time.Second
	showWithin = 2 * time.Second
)

// showMetrics stores what the pulse holds of the node's attempts that have no
// checkpoint yet. From the first one on the checkpoints' metrics are the job's.
func (d *Coordinator) showMetrics(ctx context.Context, node string, book *nodeBook, beat protocol.Heartbeat) {
	view, now := d.World.View(), d.Now()
	for _, a := range beat.Attempts {
		j, ok := jobNamed(view, a.Job)
		if !ok || !j.CreateTime.Equal(a.CreateTime) || !given(j, nodeName(node), a.Attempt) || j.Life.State != domain.JobRunningState || len(j.Life.Checkpoints) > 0 {
			continue
		}
		_, heard := j.progress(view)
		latest, any := view.Live.Latest(a.Job)
		last := book.shown[a.ID()]
		if !heard || !any || latest.Step == last.step || now.Sub(last.time) < showEvery {
			continue
		}
		book.shown[a.ID()] = shown{latest.Step, now}
		once, cancel := context.WithTimeout(ctx, showWithin)
		if err := d.storeMetrics(once, j, view.Live.Metrics(a.Job, 0)); err != nil {
			d.log.Warn("the metrics so far are not stored", "job", a.Job, "error", err)
		}
		cancel()
	}
}

// figures is a copy of what is within the limits of a row.
func figures(values map[string]float64) map[string]float64 {
	const longest = 128 // bytes of a name
	kept := make(map[string]float64, min(len(values), protocol.MaxValues))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if len(kept) < protocol.MaxValues && len(name) <= longest {
			kept[name] = values[name]
		}
	}
	return kept
}

// flat is a row as users read it: the figures beside the rest.
func flat(row projections.MetricRow) map[string]any {
	object := map[string]any{}
	for name, value := range row.Values {
		object[name] = value
	}
	object["step"], object["epoch"], object["time"] = row.Step, row.Epoch, row.Time
	object["learning_rate"], object["tokens"] = row.LearningRate, row.Tokens
	return object
}

// feelRows adds to the pulse the rows that it lacks.
func (d *Coordinator) feelRows(j job, rows []engines.Metrics) {
	if len(rows) == 0 {
		return
	}
	view := d.World.View()
	have := make(map[int]bool)
	var latest projections.MetricRow
	if _, heard := j.progress(view); heard {
		for row := range view.Live.Metrics(j.Name, 0) {
			have[row.Step] = true
		}
		latest, _ = view.Live.Latest(j.Name)
	}
	if len(have) >= projections.MaxMetricRows/2 {
		have = nil // it keeps every second row or fewer: only what is newer is lacking
	}
	var lacking []projections.MetricRow
	for _, row := range rows {
		if row.Step > latest.Step || have != nil && !have[row.Step] {
			lacking = append(lacking, rowOf(row))
		}
	}
	last := rows[len(rows)-1]
	d.World.Live().Report(j.Name, projections.Progress{Made: j.CreateTime, Attempt: j.Life.Attempt, Step: last.Step, Steps: last.Steps, Epoch: last.Epoch,
		LearningRate: last.LearningRate, Tokens: last.Tokens, Time: d.Now()}, lacking...)
}
