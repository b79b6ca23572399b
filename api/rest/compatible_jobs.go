package rest

import (
	"cmp"
	"errors"
	"reflect"
	"slices"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// fineTuned lists the collections whose jobs the OpenAI API shows as fine-tuning jobs.
var fineTuned = []string{domain.SupervisedJobs.Collection, domain.DPOJobs.Collection,
	domain.ReinforcementJobs.Collection}

const (
	fineTuningJob        = "fine_tuning.job"
	fineTuningEvent      = "fine_tuning.job.event"
	fineTuningCheckpoint = "fine_tuning.job.checkpoint"
)

func fineTuningOperations(s *Service) []request.Operation {
	const all, one = "/v1/fine_tuning/jobs", "/v1/fine_tuning/jobs/{id}"
	job := reflect.TypeFor[FineTuningJob]()
	page := []request.Parameter{afterParameter(), limitParameter("The default is 20, the maximum 1000.")}
	operations := []request.Operation{
		{ID: "createFineTuningJob", Method: "POST", Path: all, Summary: "Create a fine-tuning job (OpenAI-compatible)",
			Permission: request.Write,
			Description: "Creates a supervised, DPO or reinforcement job, depending on the field method. Settings that " +
				"anneal does not support are rejected with an error that names them.",
			Body: reflect.TypeFor[FineTuningBody](), Required: []string{"model", "training_file"}, Response: job,
			Handle: s.handle(createFineTuningJob)},
		{ID: "listFineTuningJobs", Method: "GET", Path: all, Summary: "List the fine-tuning jobs (OpenAI-compatible)",
			Permission:  request.Read,
			Description: "The supervised, DPO and reinforcement jobs of the caller's account, newest first.",
			Query: append(slices.Clone(page), request.Parameter{Name: "metadata", Kind: wire.Map,
				Description: "Lists only jobs with these metadata, given as metadata[KEY]=VALUE; metadata=null selects the " +
					"jobs without metadata."}),
			Response: reflect.TypeFor[FineTuningJobList](), Handle: s.handle(listFineTuningJobs)},
		{ID: "getFineTuningJob", Method: "GET", Path: one, Summary: "Read a fine-tuning job (OpenAI-compatible)",
			Permission: request.Read, Response: job, Handle: s.handle(getFineTuningJob)},
		{ID: "listFineTuningEvents", Method: "GET", Path: one + "/events",
			Summary: "List the events of a fine-tuning job (OpenAI-compatible)", Permission: request.Read,
			Description: "The events of the job, and the metrics of its steps, newest first.", Query: page,
			Response: reflect.TypeFor[FineTuningEventList](), Handle: s.handle(listFineTuningEvents)},
		{ID: "listFineTuningCheckpoints", Method: "GET", Path: one + "/checkpoints",
			Summary: "List the checkpoints of a fine-tuning job (OpenAI-compatible)", Permission: request.Read,
			Description: "The checkpoints that the job has not deleted, newest first.",
			Query:       []request.Parameter{afterParameter(), limitParameter("The default is 10, the maximum 1000.")},
			Response:    reflect.TypeFor[FineTuningCheckpointList](), Handle: s.handle(listFineTuningCheckpoints)},
		{ID: "cancelFineTuningJob", Method: "POST", Path: one + "/cancel",
			Summary: "Cancel a fine-tuning job (OpenAI-compatible)", Permission: request.Write,
			Description: "The response is sent once the cancellation is recorded; the job stops shortly afterwards.",
			Body:        request.NoBody, BodyOptional: true, ReleasesResources: true, Response: job,
			Handle: s.handle(changeFineTuningJob(domain.CancelJob{}))},
		{ID: "pauseFineTuningJob", Method: "POST", Path: one + "/pause",
			Summary: "Pause a fine-tuning job (OpenAI-compatible)", Permission: request.Write,
			Description: "A running job saves a checkpoint, then stops. It stays paused until it is resumed.",
			Body:        request.NoBody, BodyOptional: true, ReleasesResources: true, Response: job,
			Handle: s.handle(changeFineTuningJob(domain.PauseJob{Reason: "paused by a user"}))},
		{ID: "resumeFineTuningJob", Method: "POST", Path: one + "/resume",
			Summary: "Resume a fine-tuning job from its last checkpoint (OpenAI-compatible)", Permission: request.Write,
			Body: request.NoBody, BodyOptional: true, Response: job,
			Handle: s.handle(changeFineTuningJob(domain.ResumeJob{}))},
	}
	for i := range operations {
		operations[i].Tag, operations[i].Gate = "fineTuning", request.InOwnAccount
	}
	return operations
}

// jobRow is the row of a job of any of the kinds in fineTuned.
type jobRow = projections.Row[domain.Job]

// fineTuningRow returns the row of the job that the path names. Jobs of different kinds may have
// the same ID: then the path is ambiguous, and fineTuningRow returns an error.
func fineTuningRow(c *call) (found jobRow, err error) {
	id, names := c.PathValue("id"), []string{}
	for _, collection := range fineTuned {
		if row, ok := c.View().Job(domain.NewName(c.Account, collection, id)); ok {
			found, names = row, append(names, string(row.Name))
		}
	}
	switch len(names) {
	case 0:
		return found, request.NotFoundReason("NOT_FOUND",
			"there is no fine-tuning job %s: list the jobs with GET /v1/fine_tuning/jobs", wire.Quote(id))
	case 1:
		return found, nil
	}
	f := domain.Errorf(domain.FailedPrecondition, "%d jobs of different kinds have the ID %s: use the path of one of "+
		"them, such as /v1/%s",
		len(names),
		id, names[0])
	f.Reason = "AMBIGUOUS_ID"
	return found, f
}

func getFineTuningJob(c *call) (any, error) {
	row, err := readRequest(c, fineTuningRow)
	if err != nil {
		return nil, err
	}
	return fineTuningJobOf(c, row), nil
}

func listFineTuningJobs(c *call) (any, error) {
	p := c.Params()
	metadata := p.Map("metadata")
	var rows []jobRow
	for row := range c.View().JobsIn(c.Account) {
		if slices.Contains(fineTuned, row.Name.Collection()) && hasMetadata(row.State.Life(), metadata) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b jobRow) int {
		return cmp.Or(b.CreateTime.Compare(a.CreateTime), cmp.Compare(b.Name, a.Name))
	})
	page, more := pageOf(p, rows, func(row jobRow) string { return row.Name.ID() }, defaultListedJobs, maxListedJobs)
	if err := p.Err(); err != nil {
		return nil, err
	}
	list := FineTuningJobList{Object: listObject, Data: []FineTuningJob{}, HasMore: more}
	for _, row := range page {
		list.Data = append(list.Data, fineTuningJobOf(c, row))
	}
	return list, nil
}

// hasMetadata reports whether a job has all metadata in wanted. If wanted is nil, all jobs match;
// if it is empty, only jobs without metadata do.
func hasMetadata(life *domain.JobLife, wanted map[string]string) bool {
	var given map[string]string
	if life.Options != nil {
		given = life.Options.Metadata
	}
	for key, value := range wanted {
		if got, ok := given[key]; !ok || got != value {
			return false
		}
	}
	return wanted == nil || len(wanted) > 0 || len(given) == 0
}

// changeFineTuningJob returns a handler that applies a command to the job that the path names.
func changeFineTuningJob(command domain.Command[domain.JobLife]) handler {
	return func(c *call) (any, error) {
		p := c.Params()
		if err := p.ReadVerb(&struct{}{}); err != nil {
			return nil, err
		}
		if err := p.Err(); err != nil {
			return nil, err
		}
		row, err := fineTuningRow(c)
		if err != nil {
			if row, err = repeatedRow(c, err); err != nil {
				return nil, err
			}
			return fineTuningJobOf(c, row), nil
		}
		change, err := c.Do(domain.IntendJob(row.Name, command))
		if err != nil {
			return nil, err
		}
		if row, err = jobAfter(c, change); err != nil {
			return nil, err
		}
		return fineTuningJobOf(c, row), nil
	}
}

// repeatedRow returns the job as it was after the change that an earlier attempt of this request has
// recorded, even if another client has deleted the job since. If no earlier attempt has recorded a
// change, it returns the error missing.
func repeatedRow(c *call, missing error) (jobRow, error) {
	for _, collection := range fineTuned {
		earlier, err := c.Recorded(domain.NewName(c.Account, collection, c.PathValue("id")))
		if err != nil {
			return jobRow{}, err
		}
		if earlier.Position() > 0 {
			return jobAfter(c, earlier)
		}
	}
	return jobRow{}, missing
}

// jobAfter returns the row of a job in its state after a change.
func jobAfter(c *call, change eventlog.Change) (jobRow, error) {
	switch change.Name.Collection() {
	case domain.SupervisedJobs.Collection:
		return changedJob(c, supervisedJobs, change)
	case domain.DPOJobs.Collection:
		return changedJob(c, dpoJobs, change)
	}
	return changedJob(c, reinforcementJobs, change)
}

func changedJob[S domain.State, R any](c *call, res *resource[S, R], change eventlog.Change) (jobRow, error) {
	row, err := res.changed(c, change)
	if err != nil {
		return jobRow{}, err
	}
	job, _ := projections.JobOf(row)
	return job, nil
}

// createFineTuningJob creates a job of the kind that the request's method selects.
func createFineTuningJob(c *call) (any, error) {
	p := c.Params()
	_, normal, err := p.Body(reflect.TypeFor[FineTuningBody](), false)
	if err != nil {
		return nil, err
	}
	q := &fineTuning{call: c, p: p, id: compatibleID(c, "ftjob-")}
	if err := normal.Fill(&q.body); err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	if err := q.read(); err != nil {
		return nil, err
	}
	var row jobRow
	switch q.method {
	case domain.MethodDPO:
		row, err = submit(q, dpoJobs, q.dpoJob())
	case domain.MethodReinforcement:
		row, err = submit(q, reinforcementJobs, q.reinforcementJob())
	default:
		row, err = submit(q, supervisedJobs, q.supervisedJob())
	}
	if err != nil {
		return nil, err
	}
	return fineTuningJobOf(c, row), nil
}

// submit creates a job of the kind res, with the same checks as its create operation. Errors name
// the fields of the OpenAI API's request.
func submit[S domain.State, R any](q *fineTuning, res *resource[S, R], given *R) (jobRow, error) {
	name := domain.NewName(q.Account, res.kind.Collection, q.id)
	earlier, err := q.Recorded(name)
	if err != nil {
		return jobRow{}, err
	}
	before := len(q.p.Violations)
	sent, err := sentOf(res, given)
	if err != nil {
		return jobRow{}, err
	}
	planned, err := res.create(q.call, &creation[R]{name: name, given: given, p: q.p, options: &q.options})
	q.p.Violations = append(q.p.Violations[:before], q.ofRequest(q.p.Violations[before:])...)
	planned = withWarnings(q.call, res, q.p, nil, planned, sent, given)
	intent := domain.Intend(res.kind, name, planned.command)
	if earlier.Position() == 0 { // no earlier attempt of this request has created the job
		if err != nil {
			return jobRow{}, err
		}
		if err := allViolations(q.call, intent, q.p, q.renamed); err != nil {
			return jobRow{}, err
		}
	}
	change, err := q.Do(intent)
	if err != nil {
		return jobRow{}, q.renamed(err)
	}
	// called only to add the warnings about fields without effect
	if _, err := res.respond(q.call, change, planned); err != nil {
		return jobRow{}, err
	}
	return changedJob(q.call, res, change)
}

// renamed returns err with the names of the job's fields replaced by those of the request's fields.
func (q *fineTuning) renamed(err error) error {
	var f *domain.Error
	if !errors.As(err, &f) || len(f.Violations) == 0 {
		return err
	}
	return q.ofRequest(f.Violations).Err()
}

// ofRequest translates violations of a job's fields to violations of the request's fields. It
// leaves out the fields in q.reported.
func (q *fineTuning) ofRequest(violations domain.Violations) (v domain.Violations) {
	for _, one := range violations {
		if field := q.fieldOf(one.Field); !slices.Contains(q.reported, field) {
			v.Add(field, "%s", one.Description)
		}
	}
	return v
}
