package schedulers

import (
	"fmt"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A validation is the result of validating the resources that a job names: errors, or a resource that is
// still being created. A wait that may be long has a message.
type validation struct {
	errors  []*domain.Error
	waits   bool
	message string
}

// status joins the errors, under the most important of their codes.
func (v validation) status() domain.Status {
	code, reasons := v.errors[0].Code, make([]string, len(v.errors))
	for i, fault := range v.errors {
		reasons[i] = fault.Message
		if rank(fault.Code) < rank(code) {
			code = fault.Code
		}
	}
	return domain.Status{Code: code.String(), Message: strings.Join(reasons, "; ")}
}

func rank(code domain.Code) int {
	return slices.Index([]domain.Code{domain.InvalidArgument, domain.NotFound, domain.AlreadyExists,
		domain.FailedPrecondition}, code)
}

// inputs validates the resources that a job names, one after the other. A job may use resources of its
// own account and public models.
type inputs struct {
	view    *projections.View
	account string
	carves  bool // an evaluation split is to be created: enough rows must remain
	validation
}

func (j job) inputs(v *projections.View) inputs {
	return inputs{view: v, account: j.Name.Account(), carves: j.carves(v)}
}

func (c *inputs) refuse(code domain.Code, field, format string, args ...any) {
	c.errors = append(c.errors, domain.Errorf(code, "%s: %s", field, fmt.Sprintf(format, args...)))
}

// dataset requires a READY dataset with at least minRows rows of one of the shapes. It returns nil when
// there is no such dataset to compare with.
func (c *inputs) dataset(field, name string, minRows domain.Count, shapes ...string) *domain.Dataset {
	row, ok := c.view.Datasets.Get(domain.Name(name))
	if !ok || row.Name.Account() != c.account {
		c.refuse(domain.NotFound, field, "there is no dataset %s: upload it, then resume the job", name)
		return nil
	}
	d, this := &row.State, "this"
	if c.carves && field == "dataset" {
		minRows, this = minRows+domain.CarveOut(minRows+1), "this, with rows held back for evaluation,"
	}
	switch {
	case d.State != domain.DatasetReady:
		c.unready(field, name, d)
		return nil
	case d.Unfit(shapes...) != "":
		c.refuse(domain.InvalidArgument, field, "%s %s", name, d.Unfit(shapes...))
	case d.ExampleCount < minRows:
		c.refuse(domain.InvalidArgument, field, "%s has %s, and %s needs at least %d: name a larger dataset", name,
			d.ExampleCount.Of("row"), this, minRows)
	}
	return d
}

func (c *inputs) unready(field, name string, d *domain.Dataset) {
	switch {
	case d.Filling():
		c.waits, c.message = true, fmt.Sprintf("the rows of %s, which are being created from %s", name, d.From.Source)
	case d.Unfilled():
		c.refuse(domain.FailedPrecondition, field, "the rows of %s could not be made (%s): name another dataset", name,
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

// evaluator requires an evaluator with a revision that was built, and waits for the first build.
// revision is the one that the job started with, 0 before.
func (c *inputs) evaluator(field, name string, revision int) {
	row, ok := c.view.Evaluators.Get(domain.Name(name))
	kept := revision == 0
	if ok && !kept {
		_, kept = row.State.BuildOf(revision)
	}
	switch {
	case !ok || row.Name.Account() != c.account:
		c.refuse(domain.NotFound, field, "there is no evaluator %s: create it, then resume the job", name)
	case !kept:
		c.refuse(domain.FailedPrecondition, field,
			"revision %d of %s, which the job began with, is no longer available: create another job", revision, name)
	case row.State.Active > 0:
	case row.State.State == domain.EvaluatorFailed:
		c.refuse(domain.FailedPrecondition, field, "%s could not be built (%s): correct it, then resume the job", name,
			row.State.Status.Message)
	default:
		c.waits, c.message = true, fmt.Sprintf("%s, which is %s: %s", name, row.State.State, row.State.Status.Message)
	}
}

// models requires the models that a training starts from, and a free name for its output model; prefix
// precedes the names of the fields.
func (c *inputs) models(prefix string, t domain.TrainingConfig, j job) {
	c.base(prefix+"baseModel", t.BaseModel)
	c.adapter(prefix+"warmStartFrom", t.WarmStartFrom)
	c.output(prefix+"outputModel", t.OutputModel, j)
}

// base requires a READY model that is not an addon; "" is none.
func (c *inputs) base(field, name string) {
	if m := c.model(field, name); m != nil && m.Kind == domain.PEFTAddon {
		c.refuse(domain.InvalidArgument, field, "%s is an adapter: name it in warmStartFrom instead", name)
	}
}

// adapter requires a READY adapter whose base is READY; "" is none.
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
		c.refuse(domain.NotFound, field, "there is no model %s that this account can use: name another", name)
	case row.State.State != domain.ModelReady:
		c.refuse(domain.FailedPrecondition, field, "%s is not READY: upload all of its weights, then try again", name)
	default:
		return &row.State
	}
	return nil
}

// output requires that the job's output model does not exist, unless the job created it.
func (c *inputs) output(field, id string, j job) {
	name := domain.NewName(c.account, domain.Models.Collection, id)
	if row, ok := c.view.Models.Get(name); ok && (row.State.SourceJob != j.Name || row.CreateTime.Before(j.Created)) {
		c.refuse(domain.AlreadyExists, field, "%s already exists: choose another outputModel", name)
	}
}

// firstViolation returns the first violation of a dataset's rows, and the number of others, which the
// dataset's status lists.
func firstViolation(d *domain.Dataset) string {
	if len(d.Violations) < 2 {
		return d.Status.Message
	}
	return fmt.Sprintf("%s: %s; and %d more", d.Violations[0].Field, d.Violations[0].Description, len(d.Violations)-1)
}
