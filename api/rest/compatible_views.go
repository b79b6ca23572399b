package rest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/live"
)

// Values of FineTuningJob.Status.
const (
	statusValidating = "validating_files"
	statusQueued     = "queued"
	statusRunning    = "running"
	statusPaused     = "paused"
	statusSucceeded  = "succeeded"
	statusFailed     = "failed"
	statusCancelled  = "cancelled"
)

// fineTuningStatus maps the state of a job to the status of a fine-tuning job.
var fineTuningStatus = map[string]string{
	domain.JobCreatingState:       statusValidating,
	domain.JobValidatingState:     statusValidating,
	domain.JobCreatingInputState:  statusValidating,
	domain.JobPendingState:        statusQueued,
	domain.JobReQueueingState:     statusQueued,
	domain.JobRunningState:        statusRunning,
	domain.JobIdleState:           statusRunning,
	domain.JobWritingResultsState: statusRunning,
	domain.JobCompletedState:      statusSucceeded,
	domain.JobEarlyStoppedState:   statusSucceeded,
	domain.JobFailedState:         statusFailed,
	domain.JobExpiredState:        statusFailed,
	domain.JobCancellingState:     statusCancelled,
	domain.JobCancelledState:      statusCancelled,
	domain.JobDeletingState:       statusCancelled,
	domain.JobCleaningUpState:     statusCancelled,
	domain.JobPausedState:         statusPaused,
}

// shortName returns the name of a model in responses of the OpenAI API: the ID if the model belongs
// to the account, otherwise the resource name.
func shortName(account string, model domain.Name) string {
	if model.Account() == account {
		return model.ID()
	}
	return string(model)
}

// orNull returns a pointer to value; nil if it is the zero value.
func orNull[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// fineTuningJobOf returns a job in the format of the OpenAI API.
func fineTuningJobOf(c *call, row jobRow) FineTuningJob {
	life, spec := row.State.Life(), row.State.Spec()
	out := FineTuningJob{ID: row.Name.ID(), Object: fineTuningJob, CreatedAt: row.CreateTime.Unix(),
		Model: shortName(c.Account, spec.Model()), OrganizationID: c.Account, Status: fineTuningStatus[life.State],
		TrainingFile:   domain.Name(spec.Dataset).ID(),
		ValidationFile: orNull(domain.Name(spec.EvaluationDataset).ID()), ResultFiles: []string{}, Seed: spec.Seed,
		Integrations: []FineTuningIntegration{}, Metadata: map[string]string{}}
	if o := life.Options; o != nil {
		out.UserProvidedSuffix = orNull(o.Suffix)
		if o.Metadata != nil {
			out.Metadata = o.Metadata
		}
	}
	if life.CompletedTime != nil && life.Terminal() {
		out.FinishedAt = orNull(life.CompletedTime.Unix())
	}
	progress := progressOf(c.View(), row.Name, row.CreateTime, life)
	switch out.Status {
	case statusSucceeded:
		out.FineTunedModel = orNull(shortName(c.Account, life.Output))
		if progress != nil {
			out.TrainedTokens = orNull(progress.TrainedTokens.Int64())
		}
	case statusRunning:
		if progress != nil && progress.SecondsLeft > 0 {
			out.EstimatedFinish = orNull(c.Time.Unix() + int64(progress.SecondsLeft))
		}
	case statusFailed:
		out.Error = &FineTuningError{Code: life.Status.Code, Message: domain.HideNodes(life.Status.Message)}
	}
	if t := spec.Tracker; t != nil && t.Enabled {
		out.Integrations = []FineTuningIntegration{{Type: wandb, WandB: &WandBRun{Project: t.Project, Entity: t.Entity}}}
	}
	out.Method = methodOf(c.Account, spec)
	out.Hyperparameters = *settingsOf(out.Method).Hyperparameters
	return out
}

// methodOf returns the method of a job, with its hyperparameters, in the format of the OpenAI API.
func methodOf(account string, spec domain.JobSpec) FineTuningMethod {
	h := &FineTuningHyperparameters{Epochs: spec.Config.Epochs, BatchSize: auto, LearningRateMultiplier: auto}
	if spec.Config.BatchSizeSamples > 0 {
		h.BatchSize = spec.Config.BatchSizeSamples
	}
	if spec.LearningRateMultiplier > 0 {
		h.LearningRateMultiplier = spec.LearningRateMultiplier
	}
	settings := &FineTuningSettings{Hyperparameters: h}
	switch spec.Method {
	case domain.MethodDPO:
		if spec.Loss != nil && spec.Loss.DPO != nil {
			h.Beta = spec.Loss.DPO.Beta
		}
		return FineTuningMethod{Type: spec.Method, DPO: settings}
	case domain.MethodReinforcement:
		evaluator := domain.Name(spec.Evaluator)
		ref := string(evaluator)
		if evaluator.Account() == account {
			ref = evaluator.ID()
		}
		settings.Grader = map[string]string{"type": graderType, "evaluator": ref}
		return FineTuningMethod{Type: spec.Method, Reinforcement: settings}
	}
	return FineTuningMethod{Type: spec.Method, Supervised: settings}
}

func settingsOf(m FineTuningMethod) *FineTuningSettings {
	return cmp.Or(m.Supervised, m.DPO, m.Reinforcement)
}

// metricNames maps the names of trainers' metrics to names of the OpenAI API. Other metrics keep
// their names, with each slash replaced by _.
var metricNames = map[string]string{"train/loss": "train_loss", "train/accuracy": "train_mean_token_accuracy",
	"eval/loss": "full_valid_loss", "eval/accuracy": "full_valid_mean_token_accuracy", "reward/mean": "train_mean_reward",
	"eval/reward": "valid_mean_reward"}

// compatibleMetrics returns the metrics of a step with the names of the OpenAI API.
func compatibleMetrics(step int, values map[string]float64) map[string]float64 {
	out := map[string]float64{"step": float64(step)}
	for name, value := range values {
		out[cmp.Or(metricNames[name], strings.ReplaceAll(name, "/", "_"))] = value
	}
	return out
}

// listFineTuningEvents lists the events of a job in the log, and for each step an event with its
// metrics: see stepMetrics.
func listFineTuningEvents(c *call) (any, error) {
	p := c.Params()
	row, err := fineTuningRow(c)
	if err != nil {
		return nil, cmp.Or(p.Err(), err)
	}
	events, err := recordedEvents(c, row)
	if err != nil {
		return nil, err
	}
	steps, err := stepMetrics(c, row)
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		events = append(events, timedEvent{metricsEvent(step), step.Time, step.Step})
	}
	slices.SortStableFunc(events, func(a, b timedEvent) int { return a.time.Compare(b.time) })
	slices.Reverse(events)
	events = withCursor(events, p.Text("after"))
	page, more := pageOf(p, events, func(e timedEvent) string { return e.ID }, defaultListedJobs, maxListedJobs)
	if err := p.Err(); err != nil {
		return nil, err
	}
	list := FineTuningEventList{Object: listObject, Data: []FineTuningEvent{}, HasMore: more}
	for _, e := range page {
		list.Data = append(list.Data, e.FineTuningEvent)
	}
	return list, nil
}

// A timedEvent is an event with its exact time, by which lists are sorted; CreatedAt has only whole
// seconds.
type timedEvent struct {
	FineTuningEvent
	time time.Time
	step int // number of the step whose metrics the event has; 0 for other events
}

// stepEvent is the prefix of the IDs of events with the metrics of a step.
const stepEvent = "ftevent-step-"

// withCursor makes sure that events, which are sorted from newest to oldest, contain the event with
// the ID cursor, at which the previous page ended. If the live status has dropped the step of that
// event since, withCursor inserts an empty event in its place.
func withCursor(events []timedEvent, cursor string) []timedEvent {
	number, isStep := strings.CutPrefix(cursor, stepEvent)
	step, err := strconv.Atoi(number)
	if !isStep || err != nil {
		return events
	}
	at := slices.IndexFunc(events, func(e timedEvent) bool { return e.step > 0 && e.step <= step })
	if at < 0 || events[at].step == step {
		return events
	}
	return slices.Insert(events, at, timedEvent{FineTuningEvent: FineTuningEvent{ID: cursor}})
}

// maxMetrics is the maximum number of bytes, from the end of a metrics file, that are read for a
// list of events.
const maxMetrics = 8 << 20

// stepMetrics returns the metrics of the steps of a job. It takes them from the live status and, if
// steps are missing there, from the metrics file. The live status drops steps of long jobs, and
// loses steps in a restart of the server; the file has the steps up to the last checkpoint.
func stepMetrics(c *call, row jobRow) ([]live.MetricRow, error) {
	var newest []live.MetricRow
	if _, known := liveProgress(c.View(), row.Name, row.CreateTime); known {
		newest = slices.Collect(c.View().Live.Metrics(row.Name, 0))
	}
	if n := len(newest); n > 0 && newest[n-1].Step == n { // the live status still has every step from 1 on
		return newest, nil
	}
	rows, err := storedMetrics(c, row)
	if err != nil {
		return nil, err
	}
	all := map[int]live.MetricRow{}
	for _, one := range append(rows, newest...) {
		all[one.Step] = one
	}
	rows = rows[:0]
	for _, step := range slices.Sorted(maps.Keys(all)) {
		rows = append(rows, all[step])
	}
	for i := range rows {
		if rows[i].Steps = rows[len(rows)-1].Step; len(newest) > 0 {
			rows[i].Steps = newest[len(newest)-1].Steps
		}
	}
	return rows, nil
}

// storedMetrics returns the rows in the last maxMetrics bytes of a job's metrics file.
func storedMetrics(c *call, row jobRow) (rows []live.MetricRow, err error) {
	name := blobs.MetricsFile(row.Name, row.CreateEvent)
	size, err := c.Uploads.Blobs.Size(c.Ctx, name)
	var file io.ReadCloser
	if err == nil {
		file, err = c.Uploads.Blobs.Range(c.Ctx, name, max(0, size-maxMetrics), -1)
	}
	if domain.CodeOf(err) == domain.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxMetrics)
	for lines.Scan() {
		var fields map[string]any
		if json.Unmarshal(lines.Bytes(), &fields) != nil { // the first line may be cut off at its start
			continue
		}
		if row := metricRow(fields); row.Step > 0 {
			rows = append(rows, row)
		}
	}
	return rows, cmp.Or(lines.Err(), c.Ctx.Err())
}

// metricRow converts a line of a metrics file to a row.
func metricRow(fields map[string]any) live.MetricRow {
	step, _ := fields["step"].(float64)
	text, _ := fields["time"].(string)
	at, _ := time.Parse(time.RFC3339Nano, text) // a line without a time is sorted as the oldest
	row := live.MetricRow{Step: int(step), Time: at, Values: map[string]float64{}}
	for name, value := range fields {
		if number, ok := value.(float64); ok && strings.Contains(name, "/") {
			row.Values[name] = number
		}
	}
	return row
}

// recordedEvents returns the events of a job in the log, oldest first. It leaves out events of an
// earlier job with the same name.
func recordedEvents(c *call, row jobRow) (events []timedEvent, err error) {
	for e, err := range c.Log.Read(c.Ctx, row.Name.Subject(), 0) {
		if err != nil {
			return nil, fmt.Errorf("read events of %s: %w", row.Name, err)
		}
		if e.ID == row.CreateEvent {
			events = nil
		}
		if e.Position <= c.View().Position {
			events = append(events, timedEvent{recordedEvent(e), e.Time, 0})
		}
	}
	return events, nil
}

// metricsEvent returns the event with the metrics of a step.
func metricsEvent(row live.MetricRow) FineTuningEvent {
	data := map[string]any{"total_steps": row.Steps}
	for name, value := range compatibleMetrics(row.Step, row.Values) {
		data[name] = value
	}
	message := "Step " + strconv.Itoa(row.Step) + "/" + strconv.Itoa(row.Steps)
	if loss, ok := row.Values["train/loss"]; ok {
		message += ": training loss=" + strconv.FormatFloat(loss, 'f', 4, 64)
	}
	return FineTuningEvent{ID: stepEvent + strconv.Itoa(row.Step), Object: fineTuningEvent,
		CreatedAt: row.Time.Unix(), Level: "info", Message: message, Type: "metrics", Data: data}
}

// A jobEvent has those fields of a job's event that describeEvent needs.
type jobEvent struct {
	Attempt int           `json:"attempt"`
	Step    int           `json:"step"`
	Reason  string        `json:"reason"`
	Output  domain.Name   `json:"output"`
	Status  domain.Status `json:"status"`
}

// recordedEvent converts an event of the log to an event of a fine-tuning job.
func recordedEvent(e eventlog.Event) FineTuningEvent {
	var given jobEvent
	_ = json.Unmarshal(e.Data, &given) // missing fields remain empty
	parts := strings.Split(e.Type, ".")
	kind := parts[max(0, len(parts)-2)] // the event type ends in .KIND.v1
	given.Reason, given.Status = domain.HideNodes(given.Reason), given.Status.HideNodes()
	level, message := describeEvent(kind, e.Name, given)
	return FineTuningEvent{ID: "ftevent-" + strconv.FormatUint(e.Position, 10), Object: fineTuningEvent,
		CreatedAt: e.Time.Unix(), Level: level, Message: message, Type: "message", Data: map[string]any{"event": e.Type}}
}

// describeEvent returns the level (info, warn or error) and the message of a job's event. kind is
// the part of the event type before the version, such as created.
func describeEvent(kind string, job domain.Name, e jobEvent) (level, message string) {
	switch kind {
	case "created":
		return "info", "Created fine-tuning job: " + job.ID()
	case "validating":
		return "info", "Validating the training file and the validation file"
	case "preparing":
		return "info", "Splitting the training file"
	case "queued":
		return "info", "The job waits for free capacity"
	case "held":
		return "info", "The job waits: " + e.Status.Message
	case "started":
		return "info", fmt.Sprintf("Fine-tuning job started, attempt %d", e.Attempt)
	case "checkpointed":
		return "info", fmt.Sprintf("Checkpoint created at step %d", e.Step)
	case "writing":
		return "info", "Writing the results"
	case "resultsStored":
		return "info", "The results are stored"
	case "completed":
		return "info", strings.TrimSpace("The job has successfully completed. New fine-tuned model created: " +
			e.Output.ID() + " " + e.Reason)
	case "requeued":
		return "warn", fmt.Sprintf("Attempt %d ended, and the job waits for another attempt: %s", e.Attempt, e.Reason)
	case "failed":
		return "error", e.Status.Message
	case "cancelling":
		return "info", "Cancellation of the job was requested"
	case "cancelled":
		return "info", "The job was cancelled"
	case "pausing":
		return "info", "The job saves a checkpoint and pauses: " + e.Reason
	case "paused":
		return "info", "The job is paused: " + e.Reason
	case "resumed":
		return "info", "The job is resumed"
	case "expired":
		return "error", "The job has exceeded its time limit"
	case "abandoned":
		return "warn", "An attempt was abandoned before it started: " + e.Reason
	}
	return "info", "The job has the event " + kind
}

// listFineTuningCheckpoints lists the checkpoints of a job that the job has not deleted.
func listFineTuningCheckpoints(c *call) (any, error) {
	p := c.Params()
	row, err := fineTuningRow(c)
	if err != nil {
		return nil, cmp.Or(p.Err(), err)
	}
	life := row.State.Life()
	all := slices.Clone(life.AllCheckpoints())
	slices.Reverse(all)
	id := func(at domain.JobCheckpoint) string { return "ftckpt-" + at.ID() }
	page, more := pageOf(p, all, id, defaultCheckpoints, maxListedJobs)
	if err := p.Err(); err != nil {
		return nil, err
	}
	list := FineTuningCheckpointList{Object: listObject, Data: []FineTuningCheckpoint{}, HasMore: more}
	for _, at := range page {
		model := string(row.Name) + "/checkpoints/" + at.ID()
		if at.Files.Prefix == life.Results.Prefix && life.Output != "" {
			model = shortName(c.Account, life.Output)
		}
		list.Data = append(list.Data, FineTuningCheckpoint{ID: id(at), Object: fineTuningCheckpoint,
			CreatedAt: at.Time.Unix(), Model: model, JobID: row.Name.ID(), StepNumber: at.Step,
			Metrics: compatibleMetrics(at.Step, at.Metrics)})
	}
	list.FirstID, list.LastID = ends(list.Data, func(at FineTuningCheckpoint) string { return at.ID })
	return list, nil
}
