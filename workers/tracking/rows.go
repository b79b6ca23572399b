package tracking

import (
	"bufio"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// maxBatch is the maximum number of metric values in one request.
const maxBatch = 1000

// maxLine is the maximum length of a line of a metrics file in bytes.
const maxLine = 1 << 20

// liveRows returns those rows of an attempt in the live status whose step is greater than lastStep.
// first is the step of the first row in the live status. The rows have no gaps. When there are so
// many that the live status may have dropped some, it returns none: the caller then reads the job's
// metrics file, which is complete up to the newest checkpoint.
func liveRows(
	view *projections.View, job *projections.Row[domain.Job], attempt, lastStep int,
) (found map[int]row, first int) {
	found = map[int]row{}
	progress, ok := view.Live.Progress(job.Name)
	if !ok || !progress.Made.Equal(job.CreateTime) || progress.Attempt != attempt {
		return found, 0
	}
	count := 0
	for one := range view.Live.Metrics(job.Name, 0) {
		if count++; count >= live.MaxMetricRows/2 {
			return map[int]row{}, 0
		}
		if count == 1 {
			first = one.Step
		}
		if one.Step > lastStep {
			found[one.Step] = rowOf(one)
		}
	}
	return found, first
}

// rowOf converts a row of the live status for the tracker, with all its numbers as metrics.
func rowOf(from live.MetricRow) row {
	values := maps.Clone(from.Values)
	if values == nil {
		values = map[string]float64{}
	}
	values["epoch"], values["learning_rate"], values["tokens"] = from.Epoch, from.LearningRate, float64(from.Tokens)
	return row{from.Step, from.Time, values}
}

// fileRows returns those rows of the job's metrics file whose step is greater than lastStep, and
// the last step in the file. The file also has rows that the live status lost in a restart or
// dropped.
func (s *Sender) fileRows(
	ctx context.Context, job *projections.Row[domain.Job], lastStep int,
) (found map[int]row, last int, err error) {
	found = map[int]row{}
	file, err := s.Blobs.Get(ctx, blobs.MetricsFile(job.Name, job.CreateEvent))
	if domain.CodeOf(err) == domain.NotFound {
		return found, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, maxLine)
	for scanner.Scan() {
		one, ok := parseRow(scanner.Bytes())
		if !ok {
			continue
		}
		last = max(last, one.Step)
		if one.Step > lastStep {
			found[one.Step] = one
		}
	}
	return found, last, scanner.Err()
}

// parseRow parses a line of a metrics file: a JSON object with the step, the time and the metrics.
func parseRow(line []byte) (row, bool) {
	var object map[string]any
	if json.Unmarshal(line, &object) != nil {
		return row{}, false
	}
	step, ok := object["step"].(float64)
	at, _ := object["time"].(string)
	when, err := time.Parse(time.RFC3339Nano, at)
	one := row{int(step), when, map[string]float64{}}
	for name, value := range object {
		if number, isNumber := value.(float64); isNumber && name != "step" {
			one.Values[name] = number
		}
	}
	return one, ok && err == nil
}

// A fileVersion identifies the content of a job's metrics file, which changes with each checkpoint
// and when the job stops. The zero value matches no file.
type fileVersion struct {
	checkpoint, attempt int    // step of the newest checkpoint, and number of the newest attempt
	state               string // state of the job when it has stopped, otherwise ""
}

// collect returns the rows to send next, with their steps in the tracker's run. next reports
// whether the rows of the job's next train step follow.
func (s *Sender) collect(
	ctx context.Context, view *projections.View, sess *session, job *projections.Row[domain.Job],
) (rows []row, next bool, err error) {
	life, spec, state := job.State.Life(), job.State.Spec(), &sess.state
	after, earlier := state.Step-state.Base, trainStep(job) != state.TrainStep
	if !earlier {
		state.Attempt = life.Attempt
	}
	newer, first := liveRows(view, job, state.Attempt, after)
	stopped := life.Terminal() || life.State == domain.JobPausedState || spec.Waits && !spec.HasStep
	checkpoint := 0
	if last, ok := life.LastCheckpoint(); ok {
		checkpoint = last.Step
	}
	// Until its first checkpoint, a train step of a trainer job has the metrics file of an earlier
	// train step.
	own := !spec.Waits || stopped || checkpoint > 0
	if earlier {
		own = life.Attempt == state.Attempt
	}
	file := fileVersion{checkpoint: checkpoint, attempt: life.Attempt}
	if stopped || earlier {
		file.state = life.State
	}
	found := map[int]row{}
	if own && sess.readFile != file {
		if found, sess.fileEnd, err = s.fileRows(ctx, job, after); err != nil {
			return nil, false, err
		}
		sess.readFile = file
	}
	// Use the rows of the live status only if they follow the other rows without a gap. After a
	// restart of the control plane, the live status lacks the first rows until the agent has sent
	// again those that no metrics file has. Before the first checkpoint, the agent sends all rows
	// again.
	if stopped || earlier || checkpoint == 0 || first <= after+1 || own && first <= sess.fileEnd {
		maps.Copy(found, newer)
	}
	rows = inOrder(found, stopped || earlier)
	for i := range rows {
		rows[i].Step += state.Base
	}
	return rows, earlier && life.Attempt > state.Attempt, nil
}

// inOrder returns rows in ascending order of steps. Unless final is set, it leaves out the newest
// row, to which an evaluation may still add metrics.
func inOrder(rows map[int]row, final bool) []row {
	ordered := slices.SortedFunc(maps.Values(rows), func(a, b row) int { return a.Step - b.Step })
	if !final && len(ordered) > 0 {
		ordered = ordered[:len(ordered)-1]
	}
	return ordered
}

// batchOf returns how many of the first rows fit into one request of at most maxBatch metric
// values; at least 1.
func batchOf(rows []row) int {
	metrics := 0
	for i, one := range rows {
		if metrics += len(one.Values); metrics > maxBatch && i > 0 {
			return i
		}
	}
	return len(rows)
}
