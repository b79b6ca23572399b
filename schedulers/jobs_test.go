package schedulers_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers"
)

func TestJobsAreChecked(t *testing.T) {
	s := newHarness(t)
	s.given(account(), baseModel("base"))
	s.given(dataset("rows", domain.ShapeChat, 3)...)
	s.given(dataset("few", domain.ShapeChat, 2)...)
	s.given(dataset("pairs", domain.ShapePreference, 9)...)
	s.given(dataset("texts", domain.ShapeCompletion, 9)...)
	s.given(onDataset("empty", domain.CreateDataset{}))
	s.given(dataset("unchecked", domain.ShapeChat, 9)[:2]...)
	s.given(dataset("refused", domain.ShapeChat, 9)[:2]...)
	s.given(onDataset("refused", domain.RejectDataset{Upload: 1,
		Status: domain.Status{Code: "INVALID_ARGUMENT", Message: "rows.jsonl: line 2: not JSON"}}))
	adapter := domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: string(modelName("base"))}
	s.given(onModel("adapter", domain.RegisterModel{ModelSpec: adapter}),
		onModel("unfinished", domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}}))
	foreign := func(id string, public bool) domain.Intent {
		return domain.Intend(domain.Models, domain.NewName("other", "models", id),
			domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel, Public: public}})
	}
	s.given(foreign("shown", true), foreign("hidden", false))

	with := func(id string, change func(*domain.SupervisedSpec)) { s.given(job(id, change)) }
	with("good", nil)
	with("good-adapter", func(j *domain.SupervisedSpec) {
		j.BaseModel, j.WarmStartFrom = "",
			string(modelName("adapter"))
	})
	with("good-foreign", func(j *domain.SupervisedSpec) { j.BaseModel = "accounts/other/models/shown" })
	with("waits", func(j *domain.SupervisedSpec) { j.Dataset = string(datasetName("unchecked")) })
	with("wrong-and-waits", func(j *domain.SupervisedSpec) {
		j.Dataset, j.BaseModel = string(datasetName("unchecked")), string(modelName("nothing"))
	})
	with("wrong-adapter", func(j *domain.SupervisedSpec) {
		j.BaseModel, j.WarmStartFrom = "",
			string(modelName("base"))
	})
	with("wrong-base", func(j *domain.SupervisedSpec) { j.BaseModel = string(modelName("adapter")) })
	with("wrong-empty", func(j *domain.SupervisedSpec) { j.Dataset = string(datasetName("empty")) })
	with("wrong-evaluation", func(j *domain.SupervisedSpec) { j.EvaluationDataset = string(datasetName("texts")) })
	with("wrong-everything", func(j *domain.SupervisedSpec) {
		j.Dataset, j.BaseModel, j.OutputModel = "accounts/other/datasets/rows", string(modelName("unfinished")),
			"adapter"
	})
	with("wrong-few", func(j *domain.SupervisedSpec) { j.Dataset = string(datasetName("few")) })
	with("wrong-hidden", func(j *domain.SupervisedSpec) { j.BaseModel = "accounts/other/models/hidden" })
	with("wrong-refused", func(j *domain.SupervisedSpec) { j.Dataset = string(datasetName("refused")) })
	with("wrong-shape", func(j *domain.SupervisedSpec) { j.Dataset = string(datasetName("pairs")) })
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.comment("the pending upload is valid")
	s.given(dataset("unchecked", domain.ShapeChat, 9)[2])
	s.execute(schedulers.Jobs{})
	s.compare("jobs_checked")
}

func TestJobsArePlacedOldestFirst(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 2, nil), node("n2", domain.PoolTraining, 1, nil),
		node("n3", domain.PoolInference, 8, nil),
		node("n4", "", 1, map[string]int{"L4": 1}))
	s.comment("the gang of four nodes does not fit and is skipped; nodes without accelerators are preferred")
	s.pending(4, "z-first-but-large")
	s.pending(2, "y-second")
	s.pending(1, "x-third", "w-fourth", "v-fifth")
	s.execute(schedulers.Jobs{})
	s.comment("the allocations and the start of a gang are one step")
	s.given(onJob("y-second", domain.CompleteJob{Attempt: 1}))
	s.execute(schedulers.Allocations{}, schedulers.Jobs{})
	s.compare("jobs_placed")
}

// TestNewJobsStartAtOnce checks that a valid job starts in the plan that validates it if there is
// capacity, that an older pending job is not overtaken, and that other new jobs enter the queue.
func TestNewJobsStartAtOnce(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 3, nil))
	s.pending(1, "older")
	s.now = s.now.Add(time.Second)
	s.given(job("new-1", nil))
	s.now = s.now.Add(time.Second)
	s.given(job("new-2", nil))
	s.now = s.now.Add(time.Second)
	s.given(job("new-3", nil), job("new-gang", func(spec *domain.SupervisedSpec) { spec.Nodes = 2 }))
	s.execute(schedulers.Jobs{})
	for id, want := range map[string]string{"older": domain.JobRunningState, "new-1": domain.JobRunningState,
		"new-2": domain.JobRunningState, "new-3": domain.JobPendingState, "new-gang": domain.JobPendingState} {
		life := s.world.Lookup(jobName(id)).State.(domain.SupervisedJob).JobLife
		require.Equal(t, want, life.State, id)
		require.NotNil(t, life.Arrival, id)
	}
	s.comment("they wait, and their statuses say so")
	s.execute(schedulers.Jobs{})
	s.comment("a job whose engine no node has enters the queue, too")
	s.given(domain.Intend(domain.DPOJobs, domain.NewName("acme", domain.DPOJobs.Collection, "no-engine"),
		domain.CreateDPOJob{ID: "no-engine", DPOSpec: domain.DPOSpec{Dataset: string(datasetName("pairs")),
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	s.given(dataset("pairs", domain.ShapePreference, 9)...)
	s.execute(schedulers.Jobs{})
	s.compare("jobs_new")
}

func TestJobsAreCheckedAgainBeforeTheyStart(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 2, nil))
	s.pending(1, "j1")
	s.given(onDataset("rows", domain.RequestDeletion(domain.Datasets)), onDataset("rows", domain.DeleteDataset{}))
	s.execute(schedulers.Jobs{})
	s.comment("resumed without its dataset, the job fails again")
	s.given(onJob("j1", domain.ResumeJob{}))
	s.execute(schedulers.Jobs{})
	s.given(dataset("rows", domain.ShapeChat, 3)...)
	s.given(onJob("j1", domain.ResumeJob{}))
	s.execute(schedulers.Jobs{})
	s.compare("jobs_checked_again")
}

func TestJobsAreCancelled(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil), node("n2", domain.PoolTraining, 1, nil))
	s.pending(1, "works", "works-too", "waits")
	s.execute(schedulers.Jobs{})
	s.comment("no attempt of the pending job runs; the others can save their work")
	s.given(onJob("waits", domain.CancelJob{}), onJob("works", domain.CancelJob{}),
		onJob("works-too", domain.CancelJob{}))
	s.execute(schedulers.Jobs{})
	s.comment("a node is lost with its attempt")
	s.given(onNode("n1", domain.LoseNode{Reason: "silent"}))
	s.execute(schedulers.Jobs{})
	s.comment("the other attempt exceeds CancelWithin")
	s.advance(schedulers.CancelWithin)
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.compare("jobs_cancelled")
}

func TestJobsOfASuspendedAccountPause(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "runs", "waits", "rests")
	s.given(onJob("rests", domain.PauseJob{Reason: "paused by its user"}))
	s.execute(schedulers.Jobs{})
	s.given(onAccount(domain.SuspendAccount{SuspendState: "CREDIT_DEPLETED", Reason: "no credit is left"}))
	s.execute(schedulers.Jobs{})
	s.comment("the running attempt saves a checkpoint first")
	s.execute(schedulers.Jobs{})
	s.advance(schedulers.CancelWithin)
	s.comment("the attempt exceeds CancelWithin")
	s.execute(schedulers.Jobs{}, schedulers.Allocations{}, schedulers.Jobs{})
	s.given(onAccount(domain.RestoreAccount{}))
	s.execute(schedulers.Jobs{}, schedulers.Jobs{})
	s.compare("jobs_suspended")
}

func TestJobsLeave(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "runs")
	s.execute(schedulers.Jobs{})
	s.given(onJob("runs", domain.DeleteJob{}))
	s.comment("a node still has an allocation for the job")
	s.execute(schedulers.Jobs{}, schedulers.Allocations{}, schedulers.Jobs{}, schedulers.Jobs{})
	s.compare("jobs_deleted")
}

func TestNodesAreLost(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil), node("n2", domain.PoolTraining, 1, nil),
		node("n3", domain.PoolTraining, 1, nil))
	s.pending(2, "gang")
	s.pending(1, "single")
	s.execute(schedulers.Jobs{}, schedulers.Nodes{})
	s.advance(10 * time.Second)
	s.world.Live().Heartbeat(nodeName("n2"), s.now)
	s.world.Live().Heartbeat(nodeName("n3"), s.now)
	s.comment("n1 has sent no heartbeat since the start, the others just now")
	s.advance(6 * time.Second)
	s.execute(schedulers.Nodes{})
	s.comment("the remaining allocations of the gang are released; the gang waits for two nodes")
	s.execute(schedulers.Nodes{}, schedulers.Allocations{}, schedulers.Jobs{}, schedulers.Jobs{})
	s.comment("the node registers again, without its work")
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.world.Live().Heartbeat(nodeName("n1"), s.now)
	s.execute(schedulers.Nodes{}, schedulers.Jobs{})
	s.compare("nodes_lost")
}

// TestNodesAreForgotten checks that a lost node is removed after ForgetAfter, unless its agent
// registers the node again.
func TestNodesAreForgotten(t *testing.T) {
	s := newHarness(t)
	s.given(node("n1", domain.PoolTraining, 1, nil), node("n2", domain.PoolTraining, 1, nil))
	s.given(onNode("n1", domain.LoseNode{Reason: "silent"}), onNode("n2", domain.LoseNode{Reason: "silent"}))
	s.advance(schedulers.ForgetAfter - time.Minute)
	s.execute(schedulers.Nodes{})
	s.comment("n2 registers again")
	s.given(node("n2", domain.PoolTraining, 1, nil))
	s.world.Live().Heartbeat(nodeName("n2"), s.now)
	late := s.plan(schedulers.Nodes{ForgetAfter: time.Hour})
	require.Len(t, late.Steps, 1, "n1 alone")
	s.advance(time.Minute)
	s.world.Live().Heartbeat(nodeName("n2"), s.now)
	s.execute(schedulers.Nodes{})
	_, there := s.world.View().Nodes.Get(nodeName("n1"))
	require.False(t, there)
	s.execute(schedulers.Nodes{})
	s.compare("nodes_forgotten")
}

// TestJobsTakeTheFleetsAccelerators checks that each attempt gets the type of which the training
// nodes have the most devices, or no accelerators if the training nodes have none.
func TestJobsTakeTheFleetsAccelerators(t *testing.T) {
	const h100, l4 = "VENDOR_A_H100_80GB", "VENDOR_A_L4_24GB"
	for name, c := range map[string]struct {
		nodes []domain.Intent
		want  map[string]int
	}{
		"CPUs": {nodes: []domain.Intent{node("n1", domain.PoolTraining, 9, nil)}},
		"the most": {[]domain.Intent{node("n1", domain.PoolTraining, 9, map[string]int{l4: 1}),
			node("n2", domain.PoolTraining, 9, map[string]int{h100: 8})}, map[string]int{h100: 1}},
		"types of training nodes": {[]domain.Intent{node("n1", domain.PoolTraining, 9, map[string]int{l4: 1}),
			node("n2", domain.PoolInference, 9, map[string]int{h100: 8})}, map[string]int{l4: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarnessWithInputs(t)
			s.given(c.nodes...)
			s.pending(1, "a")
			s.execute(schedulers.Jobs{})
			job, ok := s.world.View().Job("accounts/acme/supervisedFineTuningJobs/a")
			require.True(t, ok)
			require.Equal(t, domain.JobRunningState, job.State.Life().State)
			require.Equal(t, c.want, job.State.Life().Resources.Accelerators)
		})
	}
}

// TestJobsWaitForTheQuotaOfAccelerators checks that jobs get no more accelerators than the quota of
// their account allows, and that their status says what they wait for.
func TestJobsWaitForTheQuotaOfAccelerators(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 9, map[string]int{"VENDOR_A_H100_80GB": 8}))
	s.given(domain.Intend(domain.Quotas, domain.NewName("acme", domain.Quotas.Collection, domain.QuotaAccelerators),
		domain.SetQuota{MaxValue: 2}))
	s.pending(1, "a", "b", "c")
	s.execute(schedulers.Jobs{})
	require.EqualValues(t, 2, s.world.View().Usage("acme").Accelerators)
	waits, _ := s.world.View().Job("accounts/acme/supervisedFineTuningJobs/c")
	require.Equal(t, domain.JobPendingState, waits.State.Life().State)
	require.Contains(t, waits.State.Life().Status.Message,
		"waiting for the quota of accelerators: the job needs 1, but fewer are left of the 2 that "+
			"accounts/acme/quotas/accelerators allows")
	s.given(onJob("a", domain.FailJob{Attempt: 1, Status: domain.Status{Code: "INTERNAL"}}))
	s.execute(schedulers.Jobs{})
	waits, _ = s.world.View().Job("accounts/acme/supervisedFineTuningJobs/c")
	require.Equal(t, domain.JobRunningState, waits.State.Life().State)
}

// TestWaitingJobsAreHeldOncePerReason checks that the status of each waiting job is recorded only
// once during 1,000 changes of the account's usage: while the usage stays above the quota, while it
// repeatedly crosses the quota, and while the job alone needs more than the quota.
func TestWaitingJobsAreHeldOncePerReason(t *testing.T) {
	const waiting, changes = 10, 1000
	for _, c := range []struct {
		name      string
		quota     domain.Count
		low, high int // replicas of a deployment, which scales up and down between these numbers
		want      string
	}{
		{name: "above the quota", quota: 8, low: 9, high: 12, want: "the job needs 1"},
		{name: "across the quota without capacity", quota: 8, low: 1, high: 12, want: domain.HeldForCapacity},
		{name: "a quota of 0", quota: 0, low: 1, high: 5, want: "the job alone needs 1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHarnessWithInputs(t)
			s.do(node("n1", domain.PoolTraining, 1, map[string]int{"VENDOR_A_H100_80GB": 1}))
			s.pending(1, "first")
			s.execute(schedulers.Jobs{})
			require.NotZero(t, s.world.View().Usage("acme").Accelerators)
			s.do(domain.Intend(domain.Quotas, domain.NewName("acme", domain.Quotas.Collection, domain.QuotaAccelerators),
				domain.SetQuota{MaxValue: c.quota}))
			s.do(deployment("d", 0, 20, func(d *domain.DeploymentSpec) {
				d.AcceleratorType, d.AcceleratorCount = "VENDOR_A_L4_24GB", 1
			}))
			s.do(onDeployment("d", domain.MarkDeploymentReady{Generation: 1}))
			for i := range waiting {
				s.pending(1, fmt.Sprint("j", i))
			}
			used := map[int64]bool{}
			for i := range changes {
				s.do(onDeployment("d", domain.ScaleDeployment{Replicas: []int{c.low, c.high, c.low + 1, c.high + 1}[i%4]}))
				used[s.world.View().Usage("acme").Accelerators] = true
				for _, step := range (schedulers.Jobs{}).Plan(s.world.View(), s.now).Steps {
					s.do(step.Intents()...)
				}
			}
			require.Len(t, used, 4, "the usage changes")
			held := 0
			for e, err := range s.log.Read(t.Context(), "events.>", 0) {
				require.NoError(t, err)
				if e.Type == "supervisedFineTuningJob.held.v1" {
					held++
				}
			}
			require.Equal(t, waiting, held)
			for i := range waiting {
				job, _ := s.world.View().Job(jobName(fmt.Sprint("j", i)))
				require.Contains(t, job.State.Life().Status.Message, c.want)
			}
		})
	}
}

func TestNodeThatReturnsStopsItsOldWork(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", domain.PoolTraining, 1, nil))
	s.pending(1, "single")
	s.execute(schedulers.Jobs{})
	s.given(onNode("n1", domain.LoseNode{Reason: "its agent shut down"}), node("n1", domain.PoolTraining, 1, nil))
	s.execute(schedulers.Nodes{})
	s.compare("nodes_back")
}

// TestAllocationsWaitForTheirStart checks that the start of an attempt commits the attempt's
// reservations. It also checks that without a start within ReserveWithin, the start is abandoned
// before the reservations are released.
func TestAllocationsWaitForTheirStart(t *testing.T) {
	s := newHarnessWithInputs(t)
	s.given(node("n1", "", 4, nil))
	s.pending(1, "j1")
	s.given(deployment("d1", 1, 1, nil))
	takes := domain.Resources{CPUMilli: 1000}
	reserve := func(attempt int, replica string) {
		s.given(onNode("n1", domain.PlaceAllocation{Allocation: domain.Allocation{ID: domain.AllocationID(jobName("j1"),
			attempt), For: jobName("j1"), Attempt: attempt, Resources: takes}}))
		s.given(onNode("n1", domain.PlaceAllocation{Allocation: domain.Allocation{ID: domain.ReplicaAllocationID(
			deploymentName("d1"), replica), For: deploymentName("d1"), Replica: replica, Resources: takes}}))
	}
	s.comment("the scheduler stops between the reservations and the starts")
	reserve(1, "r1")
	s.execute(schedulers.Allocations{})
	s.advance(schedulers.ReserveWithin)
	s.execute(schedulers.Allocations{})
	s.comment("a late start is refused")
	view := s.world.View()
	j1, _ := projections.TableOf(view, domain.SupervisedJobs).Get(jobName("j1"))
	_, late := domain.IntendJob(jobName("j1"), domain.StartJob{Attempt: 1, Nodes: []domain.Name{nodeName("n1")},
		Resources: takes}).Decide(j1.State, s.now)
	require.ErrorContains(t, late, "attempt 1 cannot start: the next attempt of the job is 2")
	d1, _ := view.Deployments.Get(deploymentName("d1"))
	_, late = onDeployment("d1", domain.PlaceReplica{ID: "r1", Node: nodeName("n1"), Generation: 1}).Decide(d1.State,
		s.now)
	require.ErrorContains(t, late, "the next replica is r2")
	s.execute(schedulers.Allocations{})
	n1, _ := s.world.View().Nodes.Get(nodeName("n1"))
	require.Empty(t, n1.State.Allocations)
	s.comment("the next attempt and replica start")
	reserve(2, "r2")
	s.given(onJob("j1", domain.StartJob{Attempt: 2, Nodes: []domain.Name{nodeName("n1")}, Resources: takes}),
		onDeployment("d1", domain.PlaceReplica{ID: "r2", Node: nodeName("n1"), Generation: 1}))
	s.advance(schedulers.ReserveWithin)
	s.execute(schedulers.Allocations{})
	s.comment("the attempt and the replica have ended")
	s.given(onJob("j1", domain.RequeueJob{Attempt: 2, Reason: "it crashed"}),
		onDeployment("d1", domain.RemoveReplica{ID: "r2", Reason: "it crashed", Failed: true}))
	s.execute(schedulers.Allocations{}, schedulers.Allocations{})
	s.compare("allocations")
}
