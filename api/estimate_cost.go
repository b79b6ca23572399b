package api

import (
	"reflect"

	"anneal/api/wire"
	"anneal/domain"
)

func estimateOperation() operation {
	return operation{id: "estimateSupervisedFineTuningJobCost", method: "POST", path: collectionPath + "supervisedFineTuningJobs:estimateCost", tag: domain.SupervisedJobs.Collection,
		summary: "Estimate what a supervised fine-tuning job costs", may: toRead,
		about: "The job is checked as when it is created, and nothing is created. The estimate is tokens of the dataset × epochs × the operator's price of a million tokens.",
		body:  reflect.TypeFor[costQuestion](), requires: []string{"supervisedFineTuningJob"}, answer: reflect.TypeFor[costAnswer](), handle: estimateCost}
}

// A costQuestion is a job as its create would carry it.
type costQuestion struct {
	Job SupervisedJob `json:"supervisedFineTuningJob"`
}

// A costAnswer is what a job is expected to cost.
type costAnswer struct {
	EstimatedCost domain.Money `json:"estimatedCost"`
}

// estimateCost answers what a job would cost, or all that is wrong with it.
func estimateCost(c *call) (any, error) {
	const prefix = "supervisedFineTuningJob."
	p := c.params()
	value, err := readBody(c.r, c.Limits.Body, false)
	if err != nil {
		return nil, err
	}
	var asked costQuestion
	b := wire.Normalize(&p.violations, reflect.TypeFor[costQuestion](), value)
	if err := b.Fill(&asked); err != nil {
		return nil, err
	}
	job := &asked.Job
	name := domain.NewName(c.account, domain.SupervisedJobs.Collection, "j"+c.uuid("ID"))
	var wrong domain.Violations
	c.wantNamed(&wrong, name, supervisedInputs(job))
	spec := supervisedSpec(job)
	if t := spec.TrackerConfig; t != nil && job.TrackerConfig.APIKey != "" {
		t.APIKey = &domain.Sealed{} // it is given, and kept nowhere
	}
	for _, one := range wrong {
		p.violations.Add(prefix+one.Field, "%s", one.Description)
	}
	create := domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID()}
	intent := domain.Intend(domain.SupervisedJobs, name, domain.Command[domain.SupervisedJob](create))
	told := func(err error) error { return prefixedBy(prefix, err) }
	if err := refused(c, intent, p, told); err != nil {
		return nil, err
	}
	if _, err := intent.Decide(nil, c.now); err != nil {
		return nil, told(err)
	}
	cost := c.cost(spec)
	if cost == nil {
		f := domain.Errorf(domain.FailedPrecondition, "%sdataset: %s has no rows yet: wait until it is READY, then ask again", prefix, spec.Dataset)
		f.Reason = "DATASET_NOT_READY"
		return nil, f
	}
	return costAnswer{*cost}, nil
}

// cost is what a job is expected to cost; nil when the rows of its dataset are
// not known yet.
func (c *call) cost(spec domain.SupervisedSpec) *domain.Money {
	row, ok := c.snapshot().Datasets.Get(domain.Name(spec.Dataset))
	if !ok || row.Name.Account() != c.account || row.State.State != domain.DatasetReady {
		return nil
	}
	cost := spec.Cost(c.Prices, domain.DatasetFacts{ExampleCount: row.State.ExampleCount, EstimatedTokenCount: row.State.EstimatedTokenCount})
	return &cost
}
