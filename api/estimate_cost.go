package api

import (
	"reflect"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

func estimateOperation(s *Server) request.Operation {
	return request.Operation{ID: "estimateSupervisedFineTuningJobCost", Method: "POST", Path: request.CollectionPath + "supervisedFineTuningJobs:estimateCost", Tag: domain.SupervisedJobs.Collection,
		Summary: "Estimate what a supervised fine-tuning job costs", Permission: request.Read,
		Description: "The job is checked as when it is created, and nothing is created. The estimate is tokens of the dataset × epochs × the operator's price of a million tokens.",
		Body:        reflect.TypeFor[costQuestion](), Required: []string{"supervisedFineTuningJob"}, Response: reflect.TypeFor[costAnswer](), Handle: s.handle(estimateCost)}
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
	p := c.Params()
	value, err := request.ReadBody(c.Call, false)
	if err != nil {
		return nil, err
	}
	var asked costQuestion
	b := wire.Normalize(&p.Violations, reflect.TypeFor[costQuestion](), value)
	if err := b.Fill(&asked); err != nil {
		return nil, err
	}
	job := &asked.Job
	name := domain.NewName(c.Account, domain.SupervisedJobs.Collection, "j"+c.NewUUID("ID"))
	var wrong domain.Violations
	c.wantNamed(&wrong, name, supervisedInputs(job))
	spec := supervisedSpec(job)
	if t := spec.TrackerConfig; t != nil && job.TrackerConfig.APIKey != "" {
		t.APIKey = &domain.Sealed{} // it is given, and kept nowhere
	}
	for _, one := range wrong {
		p.Violations.Add(prefix+one.Field, "%s", one.Description)
	}
	create := domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID()}
	intent := domain.Intend(domain.SupervisedJobs, name, domain.Command[domain.SupervisedJob](create))
	told := func(err error) error { return prefixedBy(prefix, err) }
	if err := refused(c, intent, p, told); err != nil {
		return nil, err
	}
	if _, err := intent.Decide(nil, c.Time); err != nil {
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
	row, ok := c.View().Datasets.Get(domain.Name(spec.Dataset))
	if !ok || row.Name.Account() != c.Account || row.State.State != domain.DatasetReady {
		return nil
	}
	cost := spec.Cost(c.server.Prices, domain.DatasetFacts{ExampleCount: row.State.ExampleCount, EstimatedTokenCount: row.State.EstimatedTokenCount})
	return &cost
}
