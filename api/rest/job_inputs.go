package rest

import (
	"strings"

	"anneal/api/wire"
	"anneal/domain"
)

// jobInputs are the resources that the create request of a job of any kind names.
type jobInputs struct {
	prefix     string // path of the training settings in the request body
	training   *domain.TrainingConfig
	dataset    string
	evaluation string
	store      *domain.ObjectStoreConfig
	tracker    *TrackerConfig
	options    *domain.JobOptions // nil except for jobs of the OpenAI API
}

// requireInputs returns an error when the account is suspended, and adds a violation for each of
// the inputs that the job may not use. It returns the sealed API key of the experiment tracker, or
// nil when the request has no such key.
func (c *call) requireInputs(v *domain.Violations, name domain.Name, inputs jobInputs) (*domain.Sealed, error) {
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	c.requireReferences(v, name, inputs)
	if t := inputs.tracker; t != nil && inputs.options == nil { // the entity is optional in the OpenAI API
		v.Require(!t.Enabled || strings.TrimSpace(t.Entity) != "", "trackerConfig.entity",
			"is required when trackerConfig.enabled is true: name the user or team at the tracker")
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

// requireReferences adds a violation for each of the inputs that does not exist, or that the job
// may not use.
func (c *call) requireReferences(v *domain.Violations, name domain.Name, inputs jobInputs) {
	shapes := domain.JobShapes(name.Collection())
	if d := c.requireRows(v, "dataset", inputs.dataset, shapes); d != nil && d.ShapeMismatch(shapes...) == "" &&
		d.Shape != "" {
		shapes = []string{d.Shape} // the evaluation rows must have the shape of the training rows
	}
	c.requireRows(v, "evaluationDataset", inputs.evaluation, shapes)
	c.requireModel(v, inputs.prefix+"baseModel", inputs.training.BaseModel, domain.BaseModel)
	c.requireModel(v, inputs.prefix+"warmStartFrom", inputs.training.WarmStartFrom, domain.PEFTAddon)
	if inputs.dataset != "" || inputs.training.OutputModel != "" { // otherwise a later train step names the model
		c.requireFreeModel(v, inputs.prefix+"outputModel", inputs.training.OutputModel, name)
	}
	if inputs.store != nil {
		c.requireSecret(v, "objectStoreConfig.credentialsSecret", inputs.store.CredentialsSecret)
	}
}

// trainingOf returns the training settings with "" in place of an unspecified region.
func trainingOf(given domain.TrainingConfig) domain.TrainingConfig {
	given.Region = wire.Specified(given.Region)
	return given
}

// requireDataset returns the dataset of the account that ref names. It returns nil when ref is not
// well-formed, and nil with a violation when the dataset does not exist.
func (c *call) requireDataset(v *domain.Violations, field, ref string) *domain.Dataset {
	name, ok := domain.ParseName(ref, domain.Datasets.Collection)
	if !ok {
		return nil // Decide rejects a ref that is not well-formed
	}
	row, exists := c.View().Datasets.Get(name)
	if !exists || name.Account() != c.Account {
		v.Add(field, "%s is not a dataset of accounts/%s: create it first, or correct the name", name, c.Account)
		return nil
	}
	return &row.State
}

// requireRows returns the dataset that ref names, and adds a violation unless the rows have one of
// the shapes. It accepts a dataset whose shape is not known yet, because the scheduler checks the
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
// may use. Kind "" accepts every kind. It ignores a ref that is not well-formed.
func (c *call) requireModel(v *domain.Violations, field, ref, kind string) {
	if _, ok := domain.ParseName(ref, domain.Models.Collection); !ok {
		return
	}
	row, usable := c.UsableModel(c.Account, ref)
	switch {
	case !usable:
		v.Add(field, "%s is not a model that accounts/%s may use: list its own and public models with "+
			"GET /inference/v1/models", ref, c.Account)
	case row.State.State != domain.ModelReady:
		v.Add(field, "%s is %s: upload its files, or wait until it is READY", ref, row.State.State)
	case row.State.Kind == domain.SpeechModel && kind != "":
		v.Add(field, "%s is a speech model: use a text model", ref)
	case kind == domain.BaseModel && row.State.Kind != kind:
		v.Add(field, "%s is an addon: give it as warmStartFrom", ref)
	case kind == domain.PEFTAddon && row.State.Kind != kind:
		v.Add(field, "%s is a base model: give it as baseModel", ref)
	}
}

// requireFreeModel adds a violation when the output model of a job already exists, or another job
// has reserved its name. ref names the output model. With "" the model has the job's ID, and
// requireFreeModel adds no violation when the job exists, because Decide rejects the job.
func (c *call) requireFreeModel(v *domain.Violations, field, ref string, job domain.Name) {
	id := ref
	if name, ok := domain.ParseName(ref, domain.Models.Collection); ok {
		v.Require(name.Account() == c.Account, field, "must be a model of accounts/%s, not %s", c.Account, name)
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
	v.Require(!taken, field, "%s already exists: choose another ID for the result", name)
	if !taken {
		c.requireUnreserved(v, field, name, job)
	}
}

// requireUnreserved adds a violation when a job other than self has reserved the name of the model.
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
	v.Require(ok && name.Account() == c.Account, field, "must name a secret of accounts/%s, like accounts/%s/secrets/ID",
		c.Account, c.Account)
}
