package api

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

func trainStepOperation(s *Server) request.Operation {
	return request.Operation{ID: "executeTrainStep", Method: "POST", Path: request.CollectionPath + "rlorTrainerJobs/{id}:executeTrainStep", Tag: domain.TrainerJobs.Collection,
		Summary: "Give a reinforcement trainer job its next step", Permission: request.Write,
		Description: "The job has keepAlive or serviceMode and is JOB_STATE_IDLE. It learns from the dataset, beginning with the model of the step before, and is JOB_STATE_IDLE again when the step's model is READY.",
		Body:        reflect.TypeFor[trainStepBody](), Required: []string{"dataset", "outputModel"}, Response: reflect.TypeFor[TrainerJob](), Handle: s.handle(executeTrainStep)}
}

// A trainStepBody is what a step learns from and what comes of it.
type trainStepBody struct {
	Dataset     string `json:"dataset"`
	OutputModel string `json:"outputModel"`
}

func executeTrainStep(c *call) (any, error) {
	p := c.Params()
	var step trainStepBody
	if err := readVerb(c, &step); err != nil {
		return nil, err
	}
	row, err := trainerJobs.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	made, err := c.Recorded(row.Name)
	if err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.TrainerJobs, row.Name, domain.Command[domain.TrainerJob](domain.ExecuteTrainStep(step)))
	if made.Position() == 0 {
		c.wantRows(&p.Violations, "dataset", step.Dataset, domain.JobShapes(domain.TrainerJobs.Collection))
		if step.OutputModel != "" {
			c.wantFreeModel(&p.Violations, "outputModel", step.OutputModel, row.Name)
		}
		if err := refused(c, intent, p, func(err error) error { return err }); err != nil {
			return nil, err
		}
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	return trainerJobs.reply(c, result)
}
