package schedulers

import (
	"fmt"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A validation is the result of validating the resources that a job names. waits is set while one
// of them is still being created or validated. message describes what the job waits for if the wait
// may be long, and is "" for a short wait.
type validation struct {
	errors  []*domain.Error
	waits   bool
	message string
}

// status returns a status with the messages of all errors and the first of their codes in the order
// of rank.
func (v validation) status() domain.Status {
	code, reasons := v.errors[0].Code, make([]string, len(v.errors))
	for i, err := range v.errors {
		reasons[i] = err.Message
		if rank(err.Code) < rank(code) {
			code = err.Code
		}
	}
	return domain.Status{Code: code.String(), Message: strings.Join(reasons, "; ")}
}

func rank(code domain.Code) int {
	return slices.Index([]domain.Code{domain.InvalidArgument, domain.NotFound, domain.AlreadyExists,
		domain.FailedPrecondition}, code)
}

// inputs validates the resources that a job names, and collects the errors. A job may use resources
// of its own account and public models.
type inputs struct {
	view    *projections.View
	account string
	carves  bool // rows of the dataset will be held out, so enough rows must remain for training
	validation
}

func (j job) inputs(v *projections.View) inputs {
	return inputs{view: v, account: j.Name.Account(), carves: j.carves(v)}
}

func (c *inputs) refuse(code domain.Code, field, format string, args ...any) {
	c.errors = append(c.errors, domain.Errorf(code, "%s: %s", field, fmt.Sprintf(format, args...)))
}

// dataset requires a READY dataset with at least minRows rows of one of the shapes. It returns the
// dataset; nil when it does not exist or is not READY.
func (c *inputs) dataset(field, name string, minRows domain.Count, shapes ...string) *domain.Dataset {
	row, ok := c.view.Datasets.Get(domain.Name(name))
	if !ok || row.Name.Account() != c.account {
		c.refuse(domain.NotFound, field, "dataset %s not found: create and upload it, then resume the job", name)
		return nil
	}
	d, user := &row.State, "the job"
	if c.carves && field == "dataset" {
		minRows, user = minRows+domain.CarveOut(minRows+1), "the job, which holds out rows for evaluation,"
	}
	switch {
	case d.State != domain.DatasetReady:
		c.unready(field, name, d)
		return nil
	case d.ShapeMismatch(shapes...) != "":
		c.refuse(domain.InvalidArgument, field, "%s %s", name, d.ShapeMismatch(shapes...))
	case d.ExampleCount < minRows:
		c.refuse(domain.InvalidArgument, field, "%s has %s, but %s needs at least %d: use a larger dataset", name,
			d.ExampleCount.Of("row"), user, minRows)
	}
	return d
}

func (c *inputs) unready(field, name string, d *domain.Dataset) {
	switch {
	case d.Filling():
		c.waits, c.message = true, fmt.Sprintf("the rows of %s, which are being created from %s", name, d.From.Source)
	case d.FillFailed():
		c.refuse(domain.FailedPrecondition, field, "the rows of %s could not be derived (%s): use another dataset", name,
			d.Status.Message)
	case d.Upload == 0:
		c.refuse(domain.FailedPrecondition, field,
			"nothing has been uploaded to %s: upload a file, validate it, then resume the job", name)
	case d.Validated < d.Upload:
		c.waits = true
	default:
		c.refuse(domain.InvalidArgument, field,
			"the last upload to %s was refused (%s): upload again, then resume the job", name, firstViolation(d))
	}
}

// evaluator requires an evaluator with a built revision, and waits for the first build. revision is
// the revision that the job's first attempt started with; 0 before that attempt.
func (c *inputs) evaluator(field, name string, revision int) {
	row, ok := c.view.Evaluators.Get(domain.Name(name))
	kept := revision == 0
	if ok && !kept {
		_, kept = row.State.BuildOf(revision)
	}
	switch {
	case !ok || row.Name.Account() != c.account:
		c.refuse(domain.NotFound, field, "evaluator %s not found: create it, then resume the job", name)
	case !kept:
		c.refuse(domain.FailedPrecondition, field,
			"revision %d of %s, which the job started with, is not stored any more: create another job", revision, name)
	case row.State.Active > 0:
	case row.State.State == domain.EvaluatorFailed:
		c.refuse(domain.FailedPrecondition, field, "%s could not be built (%s): correct it, then resume the job", name,
			row.State.Status.Message)
	default:
		c.waits, c.message = true, fmt.Sprintf("%s, which is %s: %s", name, row.State.State, row.State.Status.Message)
	}
}

// models requires that the models that the training starts from are READY, and that the name of the
// job's output model is unused. prefix precedes the names of the fields in messages.
func (c *inputs) models(prefix string, t domain.TrainingConfig, j job) {
	c.base(prefix+"baseModel", t.BaseModel)
	c.adapter(prefix+"warmStartFrom", t.WarmStartFrom)
	c.output(prefix+"outputModel", t.OutputModel, j)
}

// base requires that name, if it is not "", is a READY model that is not an addon.
func (c *inputs) base(field, name string) {
	if m := c.model(field, name); m != nil && m.Kind == domain.PEFTAddon {
		c.refuse(domain.InvalidArgument, field, "%s is an adapter: name it in warmStartFrom instead", name)
	}
}

// adapter requires that name, if it is not "", is a READY adapter whose base model is READY.
func (c *inputs) adapter(field, name string) {
	m := c.model(field, name)
	switch {
	case m == nil:
	case m.Kind != domain.PEFTAddon:
		c.refuse(domain.InvalidArgument, field, "%s is not an adapter: name it in baseModel instead", name)
	default:
		c.model(field, m.BaseModel)
	}
}

func (c *inputs) model(field, name string) *domain.Model {
	if name == "" {
		return nil
	}
	row, ok := c.view.Models.Get(domain.Name(name))
	switch {
	case !ok || !row.State.Public && row.Name.Account() != c.account:
		c.refuse(domain.NotFound, field, "model %s not found, or not public: use a model that this account can use", name)
	case row.State.State != domain.ModelReady:
		c.refuse(domain.FailedPrecondition, field, "%s is not READY: upload all of its weights, then try again", name)
	default:
		return &row.State
	}
	return nil
}

// output requires that the job's output model does not exist, unless the job created it, and that no
// other job has reserved the model's name before this job.
func (c *inputs) output(field, id string, j job) {
	name := domain.NewName(c.account, domain.Models.Collection, id)
	if row, ok := c.view.Models.Get(name); ok && (row.State.SourceJob != j.Name || row.CreateVersion < j.created) {
		c.refuse(domain.AlreadyExists, field, "%s already exists: delete it and resume the job, or create another "+
			"job with another outputModel", name)
		return
	}
	if holder := j.outputs[name]; holder != "" && holder != j.Name {
		c.refuse(domain.AlreadyExists, field, "%s is reserved by %s, which named it first: create another job with another "+
			"outputModel, or cancel or delete %s and resume this job", name, holder, holder)
	}
}

// firstViolation returns a message with the first violation of a dataset's rows and the number of
// the other violations, or the dataset's status message if the dataset has fewer than two
// violations.
func firstViolation(d *domain.Dataset) string {
	if len(d.Violations) < 2 {
		return d.Status.Message
	}
	return fmt.Sprintf("%s: %s; and %d more violations", d.Violations[0].Field, d.Violations[0].Description,
		len(d.Violations)-1)
}
