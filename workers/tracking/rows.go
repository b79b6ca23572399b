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

// maxBatch is the maximum number of metrics in one request.
const maxBatch = 1000

// maxLine is the maximum length of a line of a metrics file, in bytes.
const maxLine = 1 << 20

// liveRows returns the rows of an attempt in the live status with steps greater than after, and the
// step of the first of all its rows, which have no gaps. It returns no rows when there are so many
// that the live status may have dropped some: the rows then come from the job's metrics file, which
// is complete up to the newest checkpoint.
func liveRows(
	view *projections.View, job *projections.Row[domain.Job], attempt, after int,
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
		if one.Step > after {
			found[one.Step] = rowOf(one)
		}
	}
	return found, first
}

// rowOf returns a row of the live status with all its numbers as metrics.
func rowOf(one live.MetricRow) row {
	values := maps.Clone(one.Values)
	if values == nil {
		values = map[string]float64{}
	}
	values["epoch"], values["learning_rate"], values["tokens"] = one.Epoch, one.LearningRate, float64(one.Tokens)
	return row{one.Step, one.Time, values}
}

// fileRows returns the rows of the job's metrics file with steps greater than after, and the last step
// of the file. The file has the rows that the live status has lost in a restart, or left out because
// there were too many.
func (s *Sender) fileRows(
	ctx context.Context, job *projections.Row[domain.Job], after int,
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
		if one.Step > after {
			found[one.Step] = one
		}
	}
	return found, last, scanner.Err()
}

// parseRow reads a line of a metrics file, whose fields are step, time and metrics.
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

// A fileVersion identifies the content of a job's metrics file: the file changes with each checkpoint,
// and when the job stops. The zero value is no version.
type fileVersion struct {
	checkpoint, attempt int    // the step of the newest checkpoint, and the newest attempt
	state               string // state of a job that has stopped
}

// collect returns the rows to send, with their steps in the tracker's run. next reports whether
// rows of the next train step of a trainer job follow.
func (s *Sender) collect(
	ctx context.Context, view *projections.View, one *session, job *projections.Row[domain.Job],
) (rows []row, next bool, err error) {
	life, spec, state := job.State.Life(), job.State.Spec(), &one.state
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
	// Until the first checkpoint of a train step, the metrics file of a trainer job is that of an
	// earlier train step.
	own := !spec.Waits || stopped || checkpoint > 0
	if earlier {
		own = life.Attempt == state.Attempt
	}
	file := fileVersion{checkpoint: checkpoint, attempt: life.Attempt}
	if stopped || earlier {
		file.state = life.State
	}
	found := map[int]row{}
	if own && one.readFile != file {
		if found, one.fileEnd, err = s.fileRows(ctx, job, after); err != nil {
			return nil, false, err
		}
		one.readFile = file
	}
	// After a restart the live status begins with later rows, until the agent has repeated those that
	// no metrics file has. Before the first checkpoint the agent repeats all rows.
	if stopped || earlier || checkpoint == 0 || first <= after+1 || own && first <= one.fileEnd {
		maps.Copy(found, newer)
	}
	rows = inOrder(found, stopped || earlier)
	for i := range rows {
		rows[i].Step += state.Base
	}
	return rows, earlier && life.Attempt > state.Attempt, nil
}

// inOrder returns rows in the order of their steps. It leaves out the newest unless all are final,
// because an evaluation may still add metrics to the newest step.
func inOrder(rows map[int]row, final bool) []row {
	ordered := slices.SortedFunc(maps.Values(rows), func(a, b row) int { return a.Step - b.Step })
	if !final && len(ordered) > 0 {
		ordered = ordered[:len(ordered)-1]
	}
	return ordered
}

// batchOf returns how many of the first rows have at most maxBatch metrics in total; at least 1.
func batchOf(rows []row) int {
	metrics := 0
	for i, one := range rows {
		if metrics += len(one.Values); metrics > maxBatch && i > 0 {
			return i
		}
	}
	return len(rows)
}
