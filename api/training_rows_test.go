package api

import (
	"strings"

	"anneal/domain"
)

// useService records what a client of a training service does: a session, a run on a base model,
// and a checkpoint.
func (s *harness) useService(job, session, base domain.Name) {
	s.Helper()
	run := domain.NewName(session.Account(), domain.TrainingRuns.Collection, session.ID()+"-0")
	event := "event-of-the-job"
	for _, intent := range []domain.Intent{
		domain.Intend(domain.TrainingSessions, session, domain.Command[domain.TrainingSession](
			domain.CreateTrainingSession{TrainingSessionSpec: domain.TrainingSessionSpec{Job: job, JobEvent: event,
				Tags: []string{"advice"}, UserMetadata: map[string]string{"loop": "grpo"}, SDKVersion: "0.25.0",
				CreatedBy: s.actor}})),
		domain.Intend(domain.TrainingRuns, run, domain.Command[domain.TrainingRun](
			domain.CreateTrainingRun{TrainingRunSpec: domain.TrainingRunSpec{Job: job, JobEvent: event, Session: session,
				BaseModel: base, Config: domain.TrainingRunConfig{Rank: 16, Alpha: 32, Seed: 7, TrainAttn: true,
					TrainMLP: true}, CreatedBy: s.actor}})),
		domain.Intend(domain.TrainingRuns, run, domain.Command[domain.TrainingRun](
			domain.OpenTrainingRun{Attempt: 1, BaseHash: "sha256:" + strings.Repeat("0a", 32), Kernel: "avx512"})),
		domain.Intend(domain.TrainingRuns, run, domain.Command[domain.TrainingRun](
			domain.SaveTrainingCheckpoint{TrainingCheckpoint: domain.TrainingCheckpoint{
				Kind: domain.TrainingCheckpointTraining, Name: "step-24", Seq: 48, Steps: 24, Attempt: 1,
				Files: domain.Files{Prefix: "jobs/" + job.Account() + "/" + event + "/training/" + run.ID() + "/1-48-training/",
					Sizes: map[string]int64{"state": 168_820_736}}}})),
	} {
		s.do(intent)
	}
}

// useTrainingService executes the action "train JOB SESSION": see useService.
func (s *exampleStory) useTrainingService(job domain.Name, words []string) {
	s.Helper()
	s.useService(job, domain.NewName(job.Account(), domain.TrainingSessions.Collection, words[0]), exampleBase)
}

// serviceRows returns the test cases of the operations on training sessions and runs.
func serviceRows() (rows []row) {
	prepare := func(s *harness) {
		s.useService("accounts/acme/rlorTrainerJobs/svc", "accounts/acme/trainingSessions/one", publicBase)
	}
	for _, kind := range []struct{ one, collection, id string }{
		{"TrainingSession", "trainingSessions", "one"}, {"TrainingRun", "trainingRuns", "one-0"},
	} {
		all := "GET /v1/accounts/acme/" + kind.collection
		rows = append(rows,
			row{id: "list" + kind.one + "s", prepare: prepare, request: all + " user"},
			row{id: "get" + kind.one, prepare: prepare, request: all + "/" + kind.id + " user"},
			row{id: "list" + kind.one + "Events", prepare: prepare,
				request: all + "/" + kind.id + "/events" + briefly + " user"})
	}
	return rows
}
