package api

import (
	"anneal/api/wire"
	"anneal/domain"
)

// jobInputs are what the request for a job of any kind names.
type jobInputs struct {
	prefix     string // before the names of the training's fields
	training   *domain.TrainingConfig
	dataset    string
	evaluation string
	store      *domain.ObjectStoreConfig
	tracker    *TrackerConfig
}

// wantInputs makes sure that the account may start work, that what the job
// names is there and may be used by it, and seals the tracker's key.
func (c *call) wantInputs(v *domain.Violations, name domain.Name, in jobInputs) error {
	if err := c.RequireActive(c.Account); err != nil {
		return err
	}
	c.wantNamed(v, name, in)
	switch t := in.tracker; {
	case t == nil || t.APIKey == "":
		return nil
	case len(*v) > 0:
		t.sealed = &unsealed
		return nil
	default:
		return c.seal(name, t.APIKey, &t.sealed)
	}
}

// wantNamed makes sure that what a job names is there and may be used by it.
func (c *call) wantNamed(v *domain.Violations, name domain.Name, in jobInputs) {
	shapes := domain.JobShapes(name.Collection())
	if d := c.wantRows(v, "dataset", in.dataset, shapes); d != nil && d.Unfit(shapes...) == "" && d.Shape != "" {
		shapes = []string{d.Shape} // measured on what it learns from
	}
	c.wantRows(v, "evaluationDataset", in.evaluation, shapes)
	c.wantModel(v, in.prefix+"baseModel", in.training.BaseModel, domain.BaseModel)
	c.wantModel(v, in.prefix+"warmStartFrom", in.training.WarmStartFrom, domain.PEFTAddon)
	c.wantFreeModel(v, in.prefix+"outputModel", in.training.OutputModel, name)
	if in.store != nil {
		c.wantSecret(v, "objectStoreConfig.credentialsSecret", in.store.CredentialsSecret)
	}
}

// trainingOf is a training as the domain takes it.
func trainingOf(given domain.TrainingConfig) domain.TrainingConfig {
	given.Region = wire.Specified(given.Region)
	return given
}

// wantDataset requires that a reference, when it is given and well formed,
// names a dataset of the account; nil when it does not.
func (c *call) wantDataset(v *domain.Violations, field, ref string) *domain.Dataset {
	name, ok := domain.ParseName(ref, domain.Datasets.Collection)
	if !ok {
		return nil // the decision says what is wrong with its form
	}
	row, exists := c.View().Datasets.Get(name)
	if !exists || name.Account() != c.Account {
		v.Add(field, "names no dataset of accounts/%s: create it first, or correct the name", c.Account)
		return nil
	}
	return &row.State
}

// wantRows is wantDataset that also requires rows of one of the shapes, as far
// as they are known: the scheduler judges them again when the job begins.
func (c *call) wantRows(v *domain.Violations, field, ref string, shapes []string) *domain.Dataset {
	d := c.wantDataset(v, field, ref)
	if d != nil {
		why := d.Unfit(shapes...)
		v.Require(why == "", field, "%s %s", ref, why)
	}
	return d
}

// wantModel requires that a reference, when it is given and well formed, names
// a READY model that the account may use; kind "" is any.
func (c *call) wantModel(v *domain.Violations, field, ref, kind string) {
	if _, ok := domain.ParseName(ref, domain.Models.Collection); !ok {
		return
	}
	row, usable := c.UsableModel(c.Account, ref)
	switch {
	case !usable:
		v.Add(field, "names no model that accounts/%s may use: its own and public ones are listed at /inference/v1/models and in accounts/%s/models", c.Account, publicAccount)
	case row.State.State != domain.ModelReady:
		v.Add(field, "names a model that is %s: wait until it is READY", row.State.State)
	case row.State.Kind == domain.SpeechModel && kind != "":
		v.Add(field, "names a speech model, which transcribes: name one that answers with text")
	case kind == domain.BaseModel && row.State.Kind != kind:
		v.Add(field, "names an adapter: give it as warmStartFrom")
	case kind == domain.PEFTAddon && row.State.Kind != kind:
		v.Add(field, "names a whole model: give it as baseModel")
	}
}

// wantFreeModel requires that the model a job will make does not exist yet. It
// has the job's ID where nothing else is asked for; who gives the ID of a job
// that is there is told of that, and not of its model.
func (c *call) wantFreeModel(v *domain.Violations, field, ref string, job domain.Name) {
	id := ref
	if name, ok := domain.ParseName(ref, domain.Models.Collection); ok {
		v.Require(name.Account() == c.Account, field, "must be a model of accounts/%s", c.Account)
		id = name.ID()
	}
	if id == "" {
		if there, _ := c.World.Row(job); there != nil {
			return
		}
		id = job.ID()
	}
	name := domain.NewName(c.Account, domain.Models.Collection, id)
	_, taken := c.View().Models.Get(name)
	v.Require(!taken, field, "%s exists already: choose another ID for the result", name)
}

func (c *call) wantSecret(v *domain.Violations, field, ref string) {
	if ref == "" {
		return
	}
	name, ok := domain.ParseName(ref, domain.Secrets.Collection)
	if ok {
		_, ok = c.View().Secrets.Get(name)
	}
	v.Require(ok && name.Account() == c.Account, field, "must name a secret of accounts/%s, like accounts/%s/secrets/ID", c.Account, c.Account)
}
