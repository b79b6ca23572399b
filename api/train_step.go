package api

import (
	"reflect"

	"anneal/domain"
)

func trainStepOperation() operation {
	return operation{id: "executeTrainStep", method: "POST", path: collectionPath + "rlorTrainerJobs/{id}:executeTrainStep", tag: domain.TrainerJobs.Collection,
		summary: "Give a reinforcement trainer job its next step", may: toWrite,
		about: "The job has keepAlive or serviceMode and is JOB_STATE_IDLE. It learns from the dataset, beginning with the model of the step before, and is JOB_STATE_IDLE again when the step's model is READY.",
		body:  reflect.TypeFor[trainStepBody](), requires: []string{"dataset", "outputModel"}, answer: reflect.TypeFor[TrainerJob](), handle: executeTrainStep}
}

// A trainStepBody is what a step learns from and what comes of it.
type trainStepBody struct {
	Dataset     string `json:"dataset"`
	OutputModel string `json:"outputModel"`
}

func executeTrainStep(c *call) (any, error) {
	p := c.params()
	var step trainStepBody
	if err := readVerb(c, &step); err != nil {
		return nil, err
	}
	row, err := trainerJobs.row(c)
	if err != nil {
		return nil, err
	}
	if err := c.mayWork(c.account); err != nil {
		return nil, err
	}
	made, err := c.recorded(row.Name)
	if err != nil {
		return nil, err
	}
	intent := domain.Intend(domain.TrainerJobs, row.Name, domain.Command[domain.TrainerJob](domain.ExecuteTrainStep(step)))
	if made.Position() == 0 {
		c.wantRows(&p.violations, "dataset", step.Dataset, domain.JobShapes(domain.TrainerJobs.Collection))
		if step.OutputModel != "" {
			c.wantFreeModel(&p.violations, "outputModel", step.OutputModel, row.Name)
		}
		if err := refused(c, intent, p, func(err error) error { return err }); err != nil {
			return nil, err
		}
	}
	result, err := c.do(intent)
	if err != nil {
		return nil, err
	}
	return trainerJobs.reply(c, result)
}
