package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestJobLife(t *testing.T) {
	type D = decision[domain.JobLife]
	f := events[domain.JobLife]
	nodes := []domain.Name{"accounts/system/nodes/n1", "accounts/system/nodes/n2"}
	takes := domain.Resources{CPUMilli: 1000, MemoryMiB: 512}
	why := domain.Status{Code: "INVALID_ARGUMENT", Message: "line 2: not JSON"}
	mark := domain.JobCheckpoint{Step: 10, Attempt: 1, Time: noon}

	validating := f(domain.JobValidating{})
	pending := also(validating, domain.JobQueued{})
	started := domain.JobStarted{Attempt: 1, Nodes: nodes, Resources: takes, Time: noon}
	running := also(pending, started)
	writing := also(running, domain.JobWriting{Attempt: 1})
	requeued := also(running, domain.JobRequeued{Attempt: 1, Reason: "node lost", Counted: true, Time: noon})
	requeuedTwice := also(requeued, domain.JobQueued{}, domain.JobStarted{Attempt: 2, Nodes: nodes, Time: noon},
		domain.JobRequeued{Attempt: 2, Reason: "node lost", Counted: true, Time: noon})
	third := also(requeuedTwice, domain.JobQueued{}, domain.JobStarted{Attempt: 3, Nodes: nodes, Time: noon})
	twice := func(since time.Time) []domain.Event[domain.JobLife] {
		return also(running, domain.JobRequeued{Attempt: 1, Orphan: true, Time: since}, domain.JobQueued{},
			domain.JobStarted{Attempt: 2, Nodes: nodes, Time: noon},
			domain.JobRequeued{Attempt: 2, Orphan: true, Time: noon}, domain.JobQueued{},
			domain.JobStarted{Attempt: 3, Nodes: nodes, Time: noon})
	}
	orphan := twice(noon.Add(-domain.CrashLoop))
	failed := also(running, domain.JobFailed{Attempt: 1, Status: why, Time: noon})
	cancelling := also(running, domain.JobCancelling{Time: noon})
	cancelled := also(cancelling, domain.JobCancelled{Attempt: 1, Time: noon})
	completed := also(writing, domain.JobCompleted{Attempt: 1, Time: noon})
	pausing := domain.JobPausing{JobPause: domain.JobPause{Reason: "account suspended", Time: noon}}
	paused := also(running, domain.JobPaused{Reason: "account suspended", Time: noon})
	deleting := also(running, domain.JobDeleting{Time: noon})

	decide(t, domain.JobLives, []D{
		{name: "queue a missing job", when: domain.QueueJob{}, fault: "NOT_FOUND"},
		{name: "queue", given: validating, when: domain.QueueJob{}, then: domain.JobQueued{Time: noon}},
		{name: "queue a RUNNING job", given: running, when: domain.QueueJob{}, fault: "JOB_STATE",
			says: "the job is JOB_STATE_RUNNING; the operation requires"},
		{name: "start", given: pending, when: domain.StartJob{Attempt: 1, Nodes: nodes, Resources: takes}, then: started},
		{name: "start twice", given: running, when: domain.StartJob{Attempt: 1, Nodes: nodes, Resources: takes}},
		{name: "start on other nodes", given: running, when: domain.StartJob{Attempt: 1, Nodes: nodes[:1], Resources: takes},
			fault: "JOB_STATE"},
		{name: "start an earlier attempt", given: also(requeued, domain.JobQueued{}),
			when: domain.StartJob{Attempt: 1, Nodes: nodes}, fault: "STALE_ATTEMPT"},
		{name: "start without nodes", given: pending, when: domain.StartJob{Attempt: 1}, fault: "NO_NODES"},
		{name: "checkpoint", given: running, when: domain.RecordCheckpoint{JobCheckpoint: mark},
			then: domain.JobCheckpointed{JobCheckpoint: mark}},
		{name: "checkpoint twice", given: also(running, domain.JobCheckpointed{JobCheckpoint: mark}),
			when: domain.RecordCheckpoint{JobCheckpoint: mark}},
		{name: "checkpoint while cancelling", given: cancelling, when: domain.RecordCheckpoint{JobCheckpoint: mark},
			then: domain.JobCheckpointed{JobCheckpoint: mark}},
		{name: "checkpoint of an attempt that is over", given: requeued, when: domain.RecordCheckpoint{JobCheckpoint: mark},
			fault: "STALE_ATTEMPT", says: "attempt 1 is over"},
		{name: "complete", given: writing, when: domain.CompleteJob{Attempt: 1, StoppedEarly: true},
			then: domain.JobCompleted{Attempt: 1, StoppedEarly: true, Time: noon}},
		{name: "complete twice", given: completed, when: domain.CompleteJob{Attempt: 1}},
		{name: "complete while cancelling", given: cancelling, when: domain.CompleteJob{Attempt: 1}, fault: "JOB_STATE"},
		{name: "complete with an old attempt", given: third, when: domain.CompleteJob{Attempt: 2}, fault: "STALE_ATTEMPT"},
		{name: "requeue", given: running, when: domain.RequeueJob{Attempt: 1, Reason: "node lost"},
			then: domain.JobRequeued{Attempt: 1, Reason: "node lost", Counted: true, Time: noon}},
		{name: "requeue twice", given: requeued, when: domain.RequeueJob{Attempt: 1, Reason: "node lost"}},
		{name: "requeue the last attempt", given: third, when: domain.RequeueJob{Attempt: 3, Reason: "node lost"},
			then: domain.JobFailed{Attempt: 3,
				Status: domain.Status{Code: "UNAVAILABLE", Message: "node lost: 3 attempts have failed"}, Time: noon}},
		{name: "requeue the last attempt, preempted", given: third,
			when: domain.RequeueJob{Attempt: 3, Reason: "room for others", Preempted: true},
			then: domain.JobRequeued{Attempt: 3, Reason: "room for others", Time: noon}},
		{name: "requeue an orphan", given: third, when: domain.RequeueJob{Attempt: 3, Reason: "restarted", Orphan: true},
			then: domain.JobRequeued{Attempt: 3, Reason: "restarted", Orphan: true, Time: noon}},
		{name: "requeue the last orphan", given: orphan,
			when: domain.RequeueJob{Attempt: 3, Reason: "the agent on node n1 was restarted", Orphan: true},
			then: domain.JobFailed{Attempt: 3,
				Status: domain.Status{Code: "UNAVAILABLE",
					Message: "the agent on node n1 was restarted with its control plane: 3 consecutive attempts " +
						"ended in this way without a checkpoint; make sure that the server has enough memory and keeps " +
						"running, then resume the job"}, Time: noon}},
		{name: "requeue an orphan before CrashLoop has passed", given: twice(noon.Add(time.Second - domain.CrashLoop)),
			when: domain.RequeueJob{Attempt: 3, Reason: "restarted", Orphan: true},
			then: domain.JobRequeued{Attempt: 3, Reason: "restarted", Orphan: true, Time: noon}},
		{name: "requeue an orphan after a checkpoint",
			given: also(orphan, domain.JobCheckpointed{JobCheckpoint: domain.JobCheckpoint{Step: 10, Attempt: 3, Time: noon}}),
			when:  domain.RequeueJob{Attempt: 3, Reason: "restarted", Orphan: true},
			then:  domain.JobRequeued{Attempt: 3, Reason: "restarted", Orphan: true, Time: noon}},
		{name: "requeue an orphan after a resume",
			given: also(orphan, domain.JobFailed{Attempt: 3, Time: noon}, domain.JobResumed{},
				domain.JobStarted{Attempt: 4, Nodes: nodes, Time: noon}),
			when: domain.RequeueJob{Attempt: 4, Reason: "restarted", Orphan: true},
			then: domain.JobRequeued{Attempt: 4, Reason: "restarted", Orphan: true, Time: noon}},
		{name: "fail before an attempt", given: validating, when: domain.FailJob{Status: why},
			then: domain.JobFailed{Status: why, Time: noon}},
		{name: "fail by its attempt", given: running, when: domain.FailJob{Attempt: 1, Status: why},
			then: domain.JobFailed{Attempt: 1, Status: why, Time: noon}},
		{name: "fail twice", given: failed, when: domain.FailJob{Attempt: 1, Status: why}},
		{name: "fail by an attempt that was lost", given: requeued, when: domain.FailJob{Attempt: 1, Status: why},
			fault: "STALE_ATTEMPT"},
		{name: "fail while an attempt runs", given: running, when: domain.FailJob{Status: why},
			fault: "ATTEMPT_AT_WORK"},
		{name: "fail between attempts", given: also(requeued, domain.JobQueued{}), when: domain.FailJob{Status: why},
			then: domain.JobFailed{Status: why, Time: noon}},
		{name: "cancel", given: running, when: domain.CancelJob{}, then: domain.JobCancelling{Time: noon}},
		{name: "cancel twice", given: cancelled, when: domain.CancelJob{}},
		{name: "cancel a PAUSED job", given: paused, when: domain.CancelJob{}, then: domain.JobCancelling{Time: noon}},
		{name: "cancel a COMPLETED job", given: completed, when: domain.CancelJob{}, fault: "JOB_STATE"},
		{name: "confirm the cancellation", given: cancelling, when: domain.ConfirmCancel{Attempt: 1},
			then: domain.JobCancelled{Attempt: 1, Time: noon}},
		{name: "confirm the cancellation twice", given: cancelled, when: domain.ConfirmCancel{Attempt: 1}},
		{name: "confirm the cancellation of an earlier attempt", given: also(third, domain.JobCancelling{Time: noon}),
			when: domain.ConfirmCancel{Attempt: 2}, fault: "STALE_ATTEMPT"},
		{name: "pause a RUNNING job", given: running, when: domain.PauseJob{Reason: "account suspended"}, then: pausing},
		{name: "pause while stopping", given: also(running, pausing), when: domain.PauseJob{Reason: "account suspended"}},
		{name: "confirm the pause", given: also(running, pausing), when: domain.ConfirmPause{Attempt: 1},
			then: domain.JobPaused{Reason: "account suspended", Time: noon}},
		{name: "confirm the pause of another attempt", given: also(running, pausing), when: domain.ConfirmPause{Attempt: 2},
			fault: "STALE_ATTEMPT"},
		{name: "checkpoint while pausing", given: also(running, pausing),
			when: domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: 7}},
			then: domain.JobCheckpointed{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: 7, Time: noon}}},
		{name: "pause twice", given: paused, when: domain.PauseJob{Reason: "account suspended"}},
		{name: "resume", given: paused, when: domain.ResumeJob{}, then: domain.JobResumed{Time: noon}},
		{name: "resume a RUNNING job", given: running, when: domain.ResumeJob{}, fault: "JOB_STATE"},
		{name: "expire without a deadline", given: running, when: domain.ExpireJob{}, fault: "NOT_DUE"},
		{name: "delete", given: running, when: domain.DeleteJob{}, then: domain.JobDeleting{Time: noon}},
		{name: "delete twice", given: deleting, when: domain.DeleteJob{}},
		{name: "report after delete", given: deleting, when: domain.CompleteJob{Attempt: 1}, fault: "STALE_ATTEMPT"},
		{name: "purge before cleaning", given: deleting, when: domain.PurgeJob{}, fault: "JOB_STATE"},
	})
}

func TestJobLifeCountsWhatItSpends(t *testing.T) {
	state := fold(t, domain.JobLives, events[domain.JobLife](
		domain.JobQueued{},
		domain.JobStarted{Attempt: 1, Nodes: []domain.Name{"n1", "n2"}, Resources: domain.Resources{CPUMilli: 1000},
			Time: noon},
		domain.JobRequeued{Attempt: 1, Counted: true, Time: *later(time.Minute)},
		domain.JobQueued{},
		domain.JobStarted{Attempt: 2, Nodes: []domain.Name{"n1"},
			Resources: domain.Resources{Accelerators: map[string]int{"L4": 4}}, Time: *later(time.Hour)},
		domain.JobCompleted{Attempt: 2, Time: *later(time.Hour + time.Minute)},
	)...)
	require.Equal(t, map[string]int64{"CPU": 120, "L4": 240}, state.Seconds)
	require.Equal(t, domain.JobCompletedState, state.State)
	require.Empty(t, state.Nodes)
	require.Nil(t, state.StartTime)
	require.Equal(t, later(time.Hour+time.Minute), state.CompletedTime)
}

func TestJobLifeForgetsOldCheckpoints(t *testing.T) {
	state := domain.JobLife{State: domain.JobRunningState}
	for step := range domain.MaxCheckpoints + 3 {
		domain.JobCheckpointed{JobCheckpoint: domain.JobCheckpoint{Step: step}}.Evolve(&state)
	}
	last, ok := state.LastCheckpoint()
	require.True(t, ok)
	require.Equal(t, domain.MaxCheckpoints+2, last.Step)
	require.Len(t, state.Checkpoints, domain.MaxCheckpoints)
	require.Equal(t, 3, state.Checkpoints[0].Step)
}

func TestSupervisedJob(t *testing.T) {
	type D = decision[domain.SupervisedJob]
	f := events[domain.SupervisedJob]
	spec := domain.SupervisedSpec{Dataset: "accounts/a/datasets/d",
		TrainingConfig: domain.TrainingConfig{BaseModel: "accounts/a/models/m"}}
	filled := spec
	filled.Epochs, filled.LoraRank, filled.OutputModel = domain.DefaultEpochs, ptr(domain.DefaultLoraRank), "j1"
	made := domain.SupervisedJobCreated{SupervisedSpec: filled, CreatedBy: "ann"}
	full := spec
	full.LoraRank, full.OutputModel = ptr(0), "accounts/a/models/tuned"
	fullFilled := full
	fullFilled.Epochs, fullFilled.OutputModel = domain.DefaultEpochs, "tuned"
	wrong := domain.SupervisedSpec{Dataset: "rows", EvaluationDataset: "accounts/a/datasets/e", EvalAutoCarveout: true,
		Nodes:          -1,
		TrackerConfig:  &domain.TrackerConfig{Enabled: true},
		TrainingConfig: domain.TrainingConfig{LoraRank: ptr(3), BatchSize: -1, Epochs: 5000}}
	decide(t, domain.SupervisedJobs, []D{
		{name: "create with defaults",
			when: domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j1", CreatedBy: "ann"}, then: made},
		{name: "create, all parameters", when: domain.CreateSupervisedJob{SupervisedSpec: full, ID: "j1"},
			then: domain.SupervisedJobCreated{SupervisedSpec: fullFilled}},
		{name: "create twice", given: f(made), when: domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j1"},
			fault: "ALREADY_EXISTS"},
		{name: "create with a deadline that has passed",
			when:  domain.CreateSupervisedJob{SupervisedSpec: spec, ID: "j1", Deadline: later(-time.Second)},
			fault: "INVALID_FIELDS", says: "deadline: must be in the future"},
		{name: "create with several violations, in a fixed order",
			when: domain.CreateSupervisedJob{SupervisedSpec: wrong, ID: "j1"}, fault: "INVALID_FIELDS",
			says: "loraRank: must be 0, which trains all parameters, or a power of two up to 64; " +
				"epochs: must be from 0 to 1000; 0 stands for the default, 1; " +
				"batchSize: must be from 0 to 1073741824; 0 stands for the default; " +
				"dataset: must be a name like accounts/ACCOUNT/datasets/ID; evalAutoCarveout: give either evaluationDataset " +
				"or evalAutoCarveout, not both; " +
				"nodes: must be from 0 to 1024; 0 stands for the default, 1; " +
				"trackerConfig.apiKey: is required when trackerConfig.enabled is true; " +
				"trackerConfig.project: is required when trackerConfig.enabled is true"},
	})
}

func TestPurgeLeavesNothingOfTheWhole(t *testing.T) {
	name := domain.Name("accounts/a/supervisedFineTuningJobs/j")
	state := domain.SupervisedJob{SupervisedSpec: domain.SupervisedSpec{DisplayName: "mine"},
		JobLife: domain.JobLife{State: domain.JobCleaningUpState}}
	record, err := domain.IntendJob(name, domain.PurgeJob{}).Decide(state, noon)
	require.NoError(t, err)
	require.Equal(t, "supervisedFineTuningJob.purged.v1", record.Type)
	require.NoError(t, domain.SupervisedJobs.Fold(&state, record))
	require.Equal(t, domain.SupervisedJob{}, state)
}

func TestIntendJobRefusesOtherKinds(t *testing.T) {
	_, err := domain.IntendJob("accounts/a/models/m", domain.QueueJob{}).Decide(nil, noon)
	require.ErrorContains(t, err, "accounts/a/models/m is not a job")
}

func TestJobsAreNotResumedAfterTheirDeadline(t *testing.T) {
	for _, state := range []string{domain.JobFailedState, domain.JobCancelledState, domain.JobPausedState} {
		_, err := domain.ResumeJob{}.Decide(domain.JobLife{State: state, Deadline: later(-time.Second)}, noon)
		require.Equal(t, "DEADLINE_PASSED", reasonOf(err), state)
		_, err = domain.ResumeJob{}.Decide(domain.JobLife{State: state, Deadline: later(time.Second)}, noon)
		require.NoError(t, err, state)
	}
}
