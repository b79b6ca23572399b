package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

func estimateOperations(s *Service) []request.Operation {
	return []request.Operation{{ID: "estimateSupervisedFineTuningJobCost", Method: "POST", Path: request.CollectionPath +
		"supervisedFineTuningJobs:estimateCost", Tag: domain.SupervisedJobs.Collection,
		Summary: "Estimate the cost of a supervised fine-tuning job", Permission: request.Read,
		Description: "The job is validated as in its create request, but not created. The estimate is the number of " +
			"tokens in the rows to train on, times epochs, times the operator's price of a token.",
		Body: reflect.TypeFor[costQuestion](), Required: []string{"supervisedFineTuningJob"},
		Response: reflect.TypeFor[costAnswer](), Handle: s.handle(estimateCost)}}
}

// A costQuestion is the request body of estimateCost: a job in the format of its create request.
type costQuestion struct {
	Job SupervisedJob `json:"supervisedFineTuningJob"`
}

// A costAnswer is the response of estimateCost.
type costAnswer struct {
	EstimatedCost domain.Money `json:"estimatedCost"`
}

// estimateCost responds with the estimated cost of a job, or with all violations of the job.
func estimateCost(c *call) (any, error) {
	const prefix = "supervisedFineTuningJob."
	p := c.Params()
	_, b, err := p.Body(reflect.TypeFor[costQuestion](), false)
	if err != nil {
		return nil, err
	}
	var body costQuestion
	if err := b.Fill(&body); err != nil {
		return nil, err
	}
	job := &body.Job
	name := domain.NewName(c.Account, domain.SupervisedJobs.Collection, "j"+c.NewUUID("ID"))
	var invalid domain.Violations
	c.requireReferences(&invalid, name, supervisedInputs(job, nil))
	var trackerKey *domain.Sealed
	if t := job.TrackerConfig; t != nil && t.APIKey != "" {
		trackerKey = &sealedPlaceholder // nothing is encrypted, because the job is not stored
	}
	spec := supervisedSpec(job, trackerKey)
	for _, one := range invalid {
		p.Violations.Add(prefix+one.Field, "%s", one.Description)
	}
	create := domain.CreateSupervisedJob{SupervisedSpec: spec, ID: name.ID(), SealedMetricsURL: &sealedPlaceholder}
	intent := domain.Intend(domain.SupervisedJobs, name, domain.Command[domain.SupervisedJob](create))
	prefixed := func(err error) error { return prefixedBy(prefix, err) }
	if err := allViolations(c, intent, p, prefixed); err != nil {
		return nil, err
	}
	if _, err := intent.Decide(nil, c.Time); err != nil {
		return nil, prefixed(err)
	}
	cost := estimatedCost(c, spec)
	if cost == nil {
		f := domain.Errorf(domain.FailedPrecondition,
			"%sdataset: %s has no rows yet: upload rows, or wait until it is READY, then try again", prefix, spec.Dataset)
		f.Reason = "DATASET_NOT_READY"
		return nil, f
	}
	warnZeros(c.Call, p, "", nil, nil)
	return costAnswer{*cost}, nil
}

// estimatedCost returns the estimated cost of a job; nil if the job's dataset is not READY yet.
func estimatedCost(c *call, spec domain.SupervisedSpec) *domain.Money {
	row, ok := c.View().Datasets.Get(domain.Name(spec.Dataset))
	if !ok || row.Name.Account() != c.Account || row.State.State != domain.DatasetReady {
		return nil
	}
	cost := spec.Cost(c.Prices,
		domain.DatasetStats{ExampleCount: row.State.ExampleCount, EstimatedTokenCount: row.State.EstimatedTokenCount})
	return &cost
}
