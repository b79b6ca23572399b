package rest

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// jobInputs has the resources that the create request of a job names, of whatever kind the job is.
type jobInputs struct {
	prefix     string // path of the training settings in the request's body
	training   *domain.TrainingConfig
	dataset    string
	evaluation string
	store      *domain.ObjectStoreConfig
	tracker    *TrackerConfig
	options    *domain.JobOptions // options that only jobs of the OpenAI API have; nil for other jobs
}

// requireInputs adds a violation for each resource in inputs that the job may not use, and returns
// an error if the account is suspended. It returns the encrypted API key for the experiment
// tracker; nil if the request has none.
func (c *call) requireInputs(v *domain.Violations, name domain.Name, inputs jobInputs) (*domain.Sealed, error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	c.requireReferences(v, name, inputs)
	if t := inputs.tracker; t != nil && inputs.options == nil { // the entity is optional in the OpenAI API
		v.Require(!t.Enabled || strings.TrimSpace(t.Entity) != "", "trackerConfig.entity",
			"is required if trackerConfig.enabled is true: give the user or team in the tracker")
	}
	switch t := inputs.tracker; {
	case t == nil || t.APIKey == "":
		return nil, nil
	case len(*v) > 0:
		return &sealedPlaceholder, nil
	default:
		return c.seal(name, t.APIKey)
	}
}

// requireReferences adds a violation for each resource in inputs that does not exist or that the
// job may not use.
func (c *call) requireReferences(v *domain.Violations, name domain.Name, inputs jobInputs) {
	shapes := domain.JobShapes(name.Collection())
	if d := c.requireRows(v, "dataset", inputs.dataset, shapes); d != nil && d.ShapeMismatch(shapes...) == "" &&
		d.Shape != "" {
		shapes = []string{d.Shape} // evaluation rows must have the same shape as the training rows
	}
	c.requireRows(v, "evaluationDataset", inputs.evaluation, shapes)
	c.requireModel(v, inputs.prefix+"baseModel", inputs.training.BaseModel, domain.BaseModel)
	c.requireModel(v, inputs.prefix+"warmStartFrom", inputs.training.WarmStartFrom, domain.PEFTAddon)
	// a trainer job with neither a dataset nor an outputModel names its model in a later train step
	if inputs.dataset != "" || inputs.training.OutputModel != "" {
		c.requireFreeModel(v, inputs.prefix+"outputModel", inputs.training.OutputModel, name)
	}
	if inputs.store != nil { // objectStoreConfig has no effect, so the value of the secret is not checked
		c.requireSecret(v, "objectStoreConfig.credentialsSecret", inputs.store.CredentialsSecret)
	}
}

// trainingOf returns the training settings with an unspecified region replaced by "".
func trainingOf(given domain.TrainingConfig) domain.TrainingConfig {
	given.Region = wire.Specified(given.Region)
	return given
}

// requireDataset returns the dataset that ref names. If the account has no such dataset, it adds a
// violation and returns nil. It also returns nil if ref is malformed.
func (c *call) requireDataset(v *domain.Violations, field, ref string) *domain.Dataset {
	name, ok := domain.ParseName(ref, domain.Datasets.Collection)
	if !ok {
		return nil // the command's Decide rejects a malformed ref
	}
	row, exists := c.View().Datasets.Get(name)
	if !exists || name.Account() != c.Account {
		v.Add(field, "%s is not a dataset of accounts/%s: create it first, or correct the name", name, c.Account)
		return nil
	}
	return &row.State
}

// requireRows returns the dataset that ref names, and adds a violation if its rows have none of the
// shapes. It accepts a dataset whose rows are not validated yet, because the scheduler checks the
// shape again before the job starts.
func (c *call) requireRows(v *domain.Violations, field, ref string, shapes []string) *domain.Dataset {
	d := c.requireDataset(v, field, ref)
	if d != nil {
		why := d.ShapeMismatch(shapes...)
		v.Require(why == "", field, "%s %s", ref, why)
	}
	return d
}

// requireModel adds a violation unless ref names a READY model of the given kind that the account
// may use. The kind "" means any kind. It ignores a malformed ref.
func (c *call) requireModel(v *domain.Violations, field, ref, kind string) {
	if _, ok := domain.ParseName(ref, domain.Models.Collection); !ok {
		return
	}
	row, usable := c.UsableModel(c.Account, ref)
	switch {
	case !usable:
		v.Add(field, "%s is not a model that accounts/%s may use: list the account's models and public models with GET "+
			"/inference/v1/models", ref, c.Account)
	case row.State.State != domain.ModelReady:
		v.Add(field, "%s is %s, not READY: upload its files, or wait until it is READY", ref, row.State.State)
	case row.State.Kind == domain.SpeechModel && kind != "":
		v.Add(field, "%s is a speech model, which cannot be trained: use a text model", ref)
	case kind == domain.BaseModel && row.State.Kind != kind:
		v.Add(field, "%s is an addon: set warmStartFrom to continue its training", ref)
	case kind == domain.PEFTAddon && row.State.Kind != kind:
		v.Add(field, "%s is a base model: set baseModel instead", ref)
	}
}

// requireFreeModel adds a violation if the name of the model that a job creates is taken: a model
// has it, or another job has reserved it. ref is the ID or name of the model; "" means the ID of
// the job. If ref is "" and the job exists, requireFreeModel adds nothing, because Decide rejects
// the job.
func (c *call) requireFreeModel(v *domain.Violations, field, ref string, job domain.Name) {
	id := ref
	if name, ok := domain.ParseName(ref, domain.Models.Collection); ok {
		v.Require(name.Account() == c.Account, field, "must be the name of a new model of accounts/%s, not "+
			"%s", c.Account, name)
		id = name.ID()
	}
	if id == "" {
		if existing, _ := c.World.Row(job); existing != nil {
			return
		}
		id = job.ID()
	}
	name := domain.NewName(c.Account, domain.Models.Collection, id)
	_, taken := c.View().Models.Get(name)
	v.Require(!taken, field, "%s already exists: choose another ID for the model that the job creates", name)
	if !taken {
		c.requireUnreserved(v, field, name, job)
	}
}

// requireUnreserved adds a violation if a job other than self has reserved the name of the model.
func (c *call) requireUnreserved(v *domain.Violations, field string, model, self domain.Name) {
	if holder, reserved := c.View().ReservedBy(model, self); reserved {
		v.Add(field, "%s is reserved for the result of %s: choose another ID, or cancel or delete that job first", model,
			holder)
	}
}

func (c *call) requireSecret(v *domain.Violations, field, ref string) {
	if ref == "" {
		return
	}
	name, ok := domain.ParseName(ref, domain.Secrets.Collection)
	if ok {
		_, ok = c.View().Secrets.Get(name)
	}
	v.Require(ok && name.Account() == c.Account, field, "must be the name of a secret of accounts/%s, such as "+
		"accounts/%s/secrets/ID",
		c.Account, c.Account)
}
