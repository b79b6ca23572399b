package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

func trainStepOperations(s *Service) []request.Operation {
	return []request.Operation{{ID: "executeTrainStep", Method: "POST", Path: request.CollectionPath +
		"rlorTrainerJobs/{id}:executeTrainStep", Tag: domain.TrainerJobs.Collection,
		Summary: "Start the next train step of a reinforcement trainer job", Permission: request.Write,
		Description: "The job must have keepAlive or serviceMode, and its state must be JOB_STATE_IDLE. It trains the " +
			"model of the previous train step on the dataset. Its state is JOB_STATE_IDLE again when the model that the new " +
			"step creates is READY.",
		Body: reflect.TypeFor[trainStepBody](), Required: []string{"dataset", "outputModel"},
		Response: reflect.TypeFor[TrainerJob](), Handle: s.handle(executeTrainStep)}}
}

// A trainStepBody is the request body of executeTrainStep.
type trainStepBody struct {
	Dataset     string `json:"dataset"`
	OutputModel string `json:"outputModel"`
}

func executeTrainStep(c *call) (any, error) {
	p, step := c.Params(), trainStepBody{}
	if err := p.ReadVerb(&step); err != nil {
		return nil, err
	}
	row, err := trainerJobs.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	earlier, err := c.Recorded(row.Name)
	if err != nil {
		return nil, err
	}
	command := domain.ExecuteTrainStep{Dataset: step.Dataset, OutputModel: step.OutputModel}
	intent := domain.Intend(domain.TrainerJobs, row.Name, domain.Command[domain.TrainerJob](command))
	if earlier.Position() == 0 {
		c.requireRows(&p.Violations, "dataset", step.Dataset, domain.JobShapes(domain.TrainerJobs.Collection))
		if step.OutputModel != "" {
			c.requireFreeModel(&p.Violations, "outputModel", step.OutputModel, row.Name)
		}
		if err := allViolations(c, intent, p, unprefixed); err != nil {
			return nil, err
		}
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	return trainerJobs.reply(c, result)
}
