package workers

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/workers/wire"
)

// publishMetrics makes the metrics in a folder the job's: each step once, in
// order. The folder's are complete since step 1, so they also fill what the
// pulse lacks after a restart.
func (d *Desk) publishMetrics(ctx context.Context, j job, files domain.Files) error {
	const (
		metricsFile = "metrics.jsonl"
		maxMetrics  = 512 << 20 // bytes
	)
	if size, ok := files.Sizes[metricsFile]; !ok || size > maxMetrics {
		return nil
	}
	r, err := d.Blobs.Get(ctx, files.Folder+metricsFile)
	if err != nil {
		return err
	}
	defer r.Close()
	var rows []engines.Metrics
	for decoder := json.NewDecoder(bufio.NewReader(r)); decoder.More(); {
		var row engines.Metrics
		if err := decoder.Decode(&row); err != nil {
			return domain.Faultf(domain.DataLoss, "the metrics that the engine left cannot be read")
		}
		rows = wire.MergeRows(rows, row)
	}
	var joined bytes.Buffer
	for _, row := range rows {
		line, err := json.Marshal(flat(row))
		if err != nil {
			return fmt.Errorf("metrics: %w", err)
		}
		joined.Write(append(line, '\n'))
	}
	if _, err := d.Blobs.Put(ctx, blobs.MetricsFile(j.Name), &joined); err != nil {
		return err
	}
	d.feelRows(j, rows)
	return nil
}

// flat is a row as users read it: the figures beside the rest.
func flat(row engines.Metrics) map[string]any {
	object := map[string]any{}
	for name, value := range row.Values {
		object[name] = value
	}
	object["step"], object["epoch"], object["time"] = row.Step, row.Epoch, row.Time
	object["learning_rate"], object["tokens"] = row.LearningRate, row.Tokens
	return object
}

// feelRows adds to the pulse the rows that it lacks.
func (d *Desk) feelRows(j job, rows []engines.Metrics) {
	if len(rows) == 0 {
		return
	}
	pulse := d.World.View().Pulse
	have := make(map[int]bool)
	for row := range pulse.Metrics(j.Name, 0) {
		have[row.Step] = true
	}
	if len(have) >= projections.MaxMetricRows/2 {
		have = nil // it keeps every second row or fewer: only what is newer is lacking
	}
	latest, _ := pulse.Latest(j.Name)
	var lacking []projections.MetricRow
	for _, row := range rows {
		if row.Step > latest.Step || have != nil && !have[row.Step] {
			lacking = append(lacking, rowOf(row))
		}
	}
	last := rows[len(rows)-1]
	d.World.Pulse().Report(j.Name, projections.Progress{Attempt: j.Life.Attempt, Step: last.Step, Steps: last.Steps, Epoch: last.Epoch,
		LearningRate: last.LearningRate, Tokens: last.Tokens, Time: d.Now()}, lacking...)
}
