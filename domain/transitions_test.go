package domain_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"anneal/domain"
)

// A situation is a state of a resource, with a name and the events that lead to the state.
type situation[S domain.State] struct {
	name  string
	facts []domain.Event[S]
	first S // state before the events
}

// transitions prints the result of each command in each situation: the state after the command, "=" if
// its event is already recorded, or the error if it is refused.
func transitions[S domain.State](t *testing.T, kind *domain.Kind[S], situations []situation[S],
	commands []domain.Command[S], show func(S) string) string {
	var table strings.Builder
	for _, s := range situations {
		state := s.first
		for _, fact := range s.facts {
			fact.Evolve(&state)
		}
		fmt.Fprintf(&table, "%s\n", s.name)
		for _, cmd := range commands {
			fmt.Fprintf(&table, "  %-18s %s\n", wordOf(cmd), outcome(t, kind, state, cmd, show))
		}
	}
	return table.String()
}

func outcome[S domain.State](t *testing.T, kind *domain.Kind[S], state S, cmd domain.Command[S],
	show func(S) string) string {
	event, err := cmd.Decide(state, noon)
	switch {
	case err != nil:
		return fmt.Sprintf("refused %s %s: %s", domain.CodeOf(err), reasonOf(err), err)
	case event == nil:
		return "="
	}
	before := show(state)
	record, err := kind.Encode(event)
	if err == nil {
		err = kind.Fold(&state, record)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s -> %s", before, show(state))
}

func TestJobTransitions(t *testing.T) {
	f := events[domain.JobLife]
	nodes := []domain.Name{"accounts/system/nodes/n1"}
	inputs := domain.JobInputs{Train: "accounts/a/datasets/j-train", Evaluation: "accounts/a/datasets/j-eval"}
	outcome := domain.JobOutcome{Attempt: 1, Output: "accounts/a/models/m", Results: domain.Files{Prefix: "j/1/"}}
	validating := f(domain.JobValidating{})
	pending := also(validating, domain.JobQueued{})
	running := also(pending, domain.JobStarted{Attempt: 1, Nodes: nodes, Time: noon})
	requeued := also(running, domain.JobRequeued{Attempt: 1, Reason: "node lost", Counted: true, Time: noon})
	last := also(requeued, domain.JobRequeued{Attempt: 1, Counted: true, Time: noon}, domain.JobQueued{},
		domain.JobStarted{Attempt: 1, Nodes: nodes, Time: noon})
	writing := also(running, domain.JobWriting{Attempt: 1})
	cancelling := also(running, domain.JobCancelling{Time: noon})
	deleting := also(running, domain.JobDeleting{Time: noon})
	situations := []situation[domain.JobLife]{
		{name: "(none)", facts: nil},
		{name: "CREATING", first: domain.JobLife{State: domain.JobCreatingState}},
		{name: "VALIDATING", facts: validating},
		{name: "CREATING_INPUT_DATASET", facts: also(validating, domain.JobPreparing{Inputs: &inputs})},
		{name: "PENDING", facts: pending},
		{name: "PENDING after attempt 1 was lost", facts: also(requeued, domain.JobQueued{})},
		{name: "RUNNING", facts: running},
		{name: "RUNNING, pausing",
			facts: also(running, domain.JobPausing{JobPause: domain.JobPause{Reason: "by its user", Time: noon}})},
		{name: "RUNNING, preempted", facts: also(running, domain.JobPreempting{Attempt: 1, Reason: "a drain", Time: noon})},
		{name: "RUNNING the last attempt before MaxFailures", facts: last},
		{name: "IDLE", facts: also(running, domain.JobIdled{Attempt: 1})},
		{name: "WRITING_RESULTS", facts: writing},
		{name: "WRITING_RESULTS, stored", facts: also(writing, domain.JobResultsStored{JobOutcome: outcome, Time: noon})},
		{name: "COMPLETED", facts: also(writing, domain.JobCompleted{Attempt: 1, Time: noon})},
		{name: "EARLY_STOPPED", facts: also(writing, domain.JobCompleted{Attempt: 1, StoppedEarly: true, Time: noon})},
		{name: "RE_QUEUEING", facts: requeued},
		{name: "FAILED", facts: also(running, domain.JobFailed{Attempt: 1, Time: noon})},
		{name: "CANCELLING", facts: cancelling},
		{name: "CANCELLED", facts: also(cancelling, domain.JobCancelled{Attempt: 1, Time: noon})},
		{name: "PAUSED", facts: also(running, domain.JobPaused{Reason: "by its user", Time: noon})},
		{name: "EXPIRED", facts: also(running, domain.JobExpired{Time: noon})},
		{name: "DELETING", facts: deleting},
		{name: "DELETING_CLEANING_UP", facts: also(deleting, domain.JobCleaning{})},
	}
	commands := []domain.Command[domain.JobLife]{domain.StartValidation{}, domain.PrepareInput{Inputs: inputs},
		domain.QueueJob{}, domain.HoldJob{For: "a node"}, domain.StartJob{Attempt: 1, Nodes: nodes},
		domain.AbandonAttempt{Attempt: 2},
		domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: 1, Step: 10}},
		domain.WriteResults{Attempt: 1}, domain.StoreResults{JobOutcome: outcome}, domain.CompleteJob{Attempt: 1},
		domain.RequeueJob{Attempt: 1, Reason: "node lost"},
		domain.FailJob{Attempt: 1, Status: someStatus}, domain.CancelJob{}, domain.ConfirmCancel{Attempt: 1},
		domain.PauseJob{Reason: "by its user"}, domain.ConfirmPause{Attempt: 1},
		domain.PreemptJob{Attempt: 1, Reason: "a drain"},
		domain.ExpireJob{}, domain.ResumeJob{}, domain.DeleteJob{}, domain.CleanJob{}, domain.PurgeJob{},
		domain.RecordTracking{JobTracking: domain.JobTracking{URL: "https://t/r"}},
		domain.SetJobPriority{Priority: domain.PriorityHigh}}
	golden(t, "job_transitions.txt", transitions(t, domain.JobLives, situations, commands, func(l domain.JobLife) string {
		state := strings.TrimPrefix(orNone(l.State), "JOB_STATE_")
		if l.Pausing != nil {
			state += ", pausing"
			if l.Preempting {
				state += " to requeue"
			}
		}
		return state
	}))
}

func TestDatasetTransitions(t *testing.T) {
	f := events[domain.Dataset]
	files := domain.Files{Prefix: "d/1/", Sizes: map[string]int64{"rows.jsonl": 7}}
	rows := domain.DatasetStats{Format: domain.FormatChat, Shape: domain.ShapeChat, ExampleCount: 3}
	uploaded := f(domain.DatasetCreated{}, domain.DatasetUploaded{Upload: 1, Files: files})
	filling := f(domain.DatasetCreated{From: &domain.Derivation{Source: "accounts/a/datasets/source", Prefix: "s/1/",
		Filter: "n > 1"}})
	situations := []situation[domain.Dataset]{
		{name: "(none)"},
		{name: "UPLOADING, nothing uploaded", facts: f(domain.DatasetCreated{})},
		{name: "UPLOADING, being validated", facts: uploaded},
		{name: "UPLOADING, rejected", facts: also(uploaded, domain.DatasetRejected{Upload: 1, Status: someStatus})},
		{name: "READY, uploaded", facts: also(uploaded, domain.DatasetAccepted{Upload: 1, DatasetStats: rows})},
		{name: "UPLOADING, being derived", facts: filling},
		{name: "UPLOADING, deriving failed", facts: also(filling, domain.DatasetUnfilled{Status: someStatus})},
		{name: "READY, derived", facts: also(filling, domain.DatasetFilled{Files: files, DatasetStats: rows})},
	}
	commands := []domain.Command[domain.Dataset]{domain.CreateDataset{}, domain.UploadDataset{Upload: 1, Files: files},
		domain.AcceptDataset{Upload: 1, DatasetStats: rows},
		domain.RejectDataset{Upload: 1, Status: someStatus}, domain.FillDataset{Files: files, DatasetStats: rows},
		domain.FailFill{Status: someStatus},
		domain.UpdateDataset{DatasetSpec: domain.DatasetSpec{DisplayName: "mine", Format: domain.FormatChat,
			ExampleCount: 3}},
		domain.UpdateDataset{DatasetSpec: domain.DatasetSpec{Format: domain.FormatChat, ExampleCount: 3,
			SourceJobName: "accounts/a/dpoJobs/j"}}, requested[domain.Dataset]{domain.DeleteDataset{}, domain.Datasets}}
	golden(t, "dataset_transitions.txt",
		transitions(t, domain.Datasets, situations, commands, func(d domain.Dataset) string {
			return orNone(d.State) + " " + d.Status.Code
		}))
}

func TestDeploymentTransitions(t *testing.T) {
	f := events[domain.Deployment]
	spec := domain.DeploymentSpec{BaseModel: "accounts/a/models/m", MinReplicaCount: 1, MaxReplicaCount: ptr(2),
		Placement: &domain.Placement{MultiRegion: "GLOBAL"}}
	other := spec
	other.Precision = "FP8"
	created := domain.DeploymentCreated{DeploymentSpec: spec, Time: noon}
	loaded := f(created, domain.ReplicaPlaced{ID: "r1", Node: "n1", Generation: 1},
		domain.ReplicaAdvanced{ID: "r1", State: domain.ReplicaReady})
	ready := also(loaded, domain.DeploymentBecameReady{Generation: 1, Time: noon})
	emptied := also(ready, domain.ReplicaRemoved{ID: "r1", Time: noon})
	deleting := also(emptied, domain.DeploymentDeleting{Time: noon})
	situations := []situation[domain.Deployment]{
		{name: "(none)", facts: nil},
		{name: "CREATING, nothing placed", facts: f(created)},
		{name: "CREATING, one replica ready", facts: loaded},
		{name: "READY, one replica ready", facts: ready},
		{name: "READY, no replica", facts: emptied},
		{name: "UPDATING, one replica with the old settings",
			facts: also(ready, domain.DeploymentUpdated{DeploymentSpec: other, Rollout: true, Time: noon})},
		{name: "FAILED", facts: f(created, domain.DeploymentFailed{Time: noon})},
		{name: "DELETING, one replica ready", facts: also(ready, domain.DeploymentDeleting{Time: noon})},
		{name: "DELETING, no replica", facts: deleting},
		{name: "DELETING hard, no replica", facts: also(emptied, domain.DeploymentDeleting{Hard: true, Time: noon})},
		{name: "DELETED, can be undeleted",
			facts: also(deleting, domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: *later(time.Hour)})},
		{name: "DELETED, purgeTime has passed",
			facts: also(deleting, domain.DeploymentDeleted{DeleteTime: noon, PurgeTime: noon})},
	}
	commands := []domain.Command[domain.Deployment]{domain.CreateDeployment{DeploymentSpec: spec},
		domain.PlaceReplica{ID: "r1", Node: "n1", Generation: 1},
		domain.AdvanceReplica{ID: "r1", Node: "n1", State: domain.ReplicaReady}, domain.RemoveReplica{ID: "r1", Failed: true},
		domain.AbandonReplica{ID: "r2"},
		domain.MarkDeploymentReady{Generation: 1}, domain.FailDeployment{Status: someStatus},
		domain.UpdateDeployment{DeploymentSpec: other},
		domain.ScaleDeployment{Replicas: 2}, domain.WakeDeployment{}, domain.DeleteDeployment{IgnoreChecks: true},
		hardDeletion{domain.DeleteDeployment{IgnoreChecks: true, Hard: true}},
		domain.FinishDeletion{Keep: time.Hour}, domain.UndeleteDeployment{}, domain.PurgeDeployment{}}
	golden(t, "deployment_transitions.txt",
		transitions(t, domain.Deployments, situations, commands, func(d domain.Deployment) string {
			return fmt.Sprintf("%s, %d of %d ready", orNone(d.State), d.ReadyReplicas(), d.DesiredReplicas)
		}))
}

// requested decides the command delete on the state of a resource whose deletion was requested at
// the same time.
type requested[S domain.State] struct {
	delete domain.Command[S]
	kind   *domain.Kind[S]
}

func (c requested[S]) Decide(s S, now time.Time) (domain.Event[S], error) {
	if s.Exists() {
		s = c.kind.WithDeletion(s, now)
	}
	return c.delete.Decide(s, now)
}

func (c requested[S]) word() string { return wordOf(c.delete) }

// hardDeletion is a hard DeleteDeployment that the golden file shows with a separate name.
type hardDeletion struct {
	domain.Command[domain.Deployment]
}

func (hardDeletion) word() string { return "DeleteDeployment!" }

func orNone(state string) string {
	if state == "" {
		return "(none)"
	}
	return state
}
