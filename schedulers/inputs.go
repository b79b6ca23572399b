package schedulers

import (
	"fmt"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A validation is the result of validating the resources that a job names. waits is set while one
// of them is still being created or validated. message says what the job waits for if this may take
// long; otherwise it is "".
type validation struct {
	errors  []*domain.Error
	waits   bool
	message string
}

// status returns the status of a job with these errors: the messages of all errors, and the code
// that comes first in rank.
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

// inputs validates the resources that a job names and collects the errors. A job may use resources
// of its own account, and public models.
type inputs struct {
	view          *projections.View
	account       string
	needsCarveOut bool // rows will be held out for evaluation, so enough other rows must remain for training
	validation
}

func (j job) inputs(v *projections.View) inputs {
	return inputs{view: v, account: j.Name.Account(), needsCarveOut: j.needsCarveOut(v)}
}

func (c *inputs) refuse(code domain.Code, field, format string, args ...any) {
	c.errors = append(c.errors, domain.Errorf(code, "%s: %s", field, fmt.Sprintf(format, args...)))
}

// dataset adds an error unless the named dataset is READY and has at least minRows rows of one of
// the shapes. It returns the dataset; nil when it does not exist or is not READY. field is the
// job's field that names it.
func (c *inputs) dataset(field, name string, minRows domain.Count, shapes ...string) *domain.Dataset {
	row, ok := c.view.Datasets.Get(domain.Name(name))
	if !ok || row.Name.Account() != c.account {
		c.refuse(domain.NotFound, field, "dataset %s not found: create and upload it, then resume the job", name)
		return nil
	}
	d, user := &row.State, "the job"
	if c.needsCarveOut && field == "dataset" {
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

// evaluator adds an error unless the named evaluator has a built revision, or its first build is
// not finished; then the job waits for the build. revision is the revision that the job's first
// attempt started with; 0 before that attempt.
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
		c.waits, c.message = true, fmt.Sprintf("evaluator %s, which is %s: %s", name, row.State.State,
			row.State.Status.Message)
	}
}

// models adds an error for each model that the training starts from and that is not READY. It also
// adds an error if the name of the job's output model is in use. prefix precedes the names of the
// fields of t in messages.
func (c *inputs) models(prefix string, t domain.TrainingConfig, j job) {
	c.base(prefix+"baseModel", t.BaseModel)
	c.adapter(prefix+"warmStartFrom", t.WarmStartFrom)
	c.output(prefix+"outputModel", t.OutputModel, j)
}

// base adds an error unless name is "" or a READY model that is not an addon.
func (c *inputs) base(field, name string) {
	if m := c.model(field, name); m != nil && m.Kind == domain.PEFTAddon {
		c.refuse(domain.InvalidArgument, field, "%s is an adapter: name it in warmStartFrom instead", name)
	}
}

// adapter adds an error unless name is "" or a READY adapter whose base model is READY.
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
		c.refuse(domain.FailedPrecondition, field, "%s is not READY: upload all of its weights, then resume the job", name)
	default:
		return &row.State
	}
	return nil
}

// output adds an error if the job's output model exists and was not created by this job, or if
// another job has reserved its name before this job.
func (c *inputs) output(field, id string, j job) {
	name := domain.NewName(c.account, domain.Models.Collection, id)
	if row, ok := c.view.Models.Get(name); ok && (row.State.SourceJob != j.Name || row.CreateVersion < j.created) {
		c.refuse(domain.AlreadyExists, field, "%s already exists: delete it and resume the job, or create another "+
			"job with another outputModel", name)
		return
	}
	if holder, reserved := c.view.ReservedBy(name, ""); reserved && holder != j.Name {
		c.refuse(domain.AlreadyExists, field, "%s is reserved by %s, which named it first: create another job with another "+
			"outputModel, or cancel or delete %s and resume this job", name, holder, holder)
	}
}

// firstViolation describes the violations in a rejected upload of a dataset: the first one, and the
// number of others. It returns the dataset's status message if there are fewer than two.
func firstViolation(d *domain.Dataset) string {
	if len(d.Violations) < 2 {
		return d.Status.Message
	}
	return fmt.Sprintf("%s: %s; and %d more violations", d.Violations[0].Field, d.Violations[0].Description,
		len(d.Violations)-1)
}
