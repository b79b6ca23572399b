package schedulers_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// A town is who uses a cluster, and its machines.
type town struct {
	t      *testing.T
	ctx    context.Context
	log    eventlog.Log
	worlds []*projections.World
	agents []*agent
	random *rand.Rand
	made   int
}

// wish carries an intent out for somebody; that it is refused is life.
func (o *town) wish(actor string, world *projections.World, intent domain.Intent) error {
	result, err := eventlog.Do(o.ctx, o.log, world, eventlog.Request{Time: time.Now().UTC(), Actor: actor}, intent)
	if err == nil && result.Position() > 0 {
		err = world.WaitFor(o.ctx, result.Position())
	}
	return err
}

// insist carries an intent out, however often the log takes nothing.
func (o *town) insist(actor string, intent domain.Intent) {
	err := o.wish(actor, o.worlds[0], intent)
	for range 10 {
		if domain.CodeOf(err) != domain.Unavailable {
			break
		}
		err = o.wish(actor, o.worlds[0], intent)
	}
	if err != nil {
		o.t.Fatal(err)
	}
}

// open makes what jobs and deployments need.
func (o *town) open() {
	for _, intent := range append([]domain.Intent{account(), baseModel("base")}, dataset("rows", domain.ShapeChat, 9)...) {
		o.insist("operator", intent)
	}
}

// act is one second of the users' lives, and of fate's.
func (o *town) act() {
	user := func(intent domain.Intent) { _ = o.wish("user", o.worlds[o.random.IntN(2)], intent) }
	o.made++
	id, chance := fmt.Sprintf("x%d", o.made), func(perThousand int) bool { return o.random.IntN(1000) < perThousand }
	if chance(300) { // a name that was there before, perhaps
		id = fmt.Sprintf("y%d", o.random.IntN(8))
	}
	if chance(40) {
		user(job(id, func(s *domain.SupervisedSpec) {
			s.Nodes, s.EvalAutoCarveout = o.random.IntN(4), o.random.IntN(2) == 0
		}))
	}
	if chance(6) {
		late := time.Now().Add(time.Duration(1+o.random.IntN(10)) * time.Minute).UTC()
		user(domain.Intend(domain.SupervisedJobs, jobName(id), domain.CreateSupervisedJob{ID: id, Deadline: &late, SupervisedSpec: domain.SupervisedSpec{
			Dataset: string(datasetName("rows")), TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}}))
	}
	if chance(4) {
		user(job(id, func(s *domain.SupervisedSpec) { s.Dataset = string(datasetName("nothing")) }))
	}
	if chance(40) {
		cmds := []domain.Command[domain.JobLife]{domain.CancelJob{}, domain.CancelJob{}, domain.DeleteJob{}, domain.ResumeJob{}, domain.PauseJob{Reason: "by its user"}}
		user(domain.IntendJob(o.someJob(), cmds[o.random.IntN(len(cmds))]))
	}
	if chance(12) && o.worlds[0].View().Deployments.Len() < 12 {
		user(deployment(id, o.random.IntN(3), 3, func(d *domain.DeploymentSpec) {
			if o.random.IntN(4) == 0 {
				end := time.Now().Add(time.Duration(1+o.random.IntN(30)) * time.Minute).UTC()
				d.ExpireTime = &end
			}
		}))
	}
	if chance(50) {
		o.changeDeployment(user)
	}
	if chance(3) {
		user(onAccount(domain.SuspendAccount{SuspendState: "CREDIT_DEPLETED"}))
	}
	if chance(60) {
		user(onAccount(domain.RestoreAccount{}))
	}
	if chance(12) {
		o.agents[o.random.IntN(len(o.agents))].strike(o.random)
	}
	o.purge()
	o.fill(200, 5)
}

// fill does what the task does that makes the rows of datasets: now and then,
// and not always with success. Somebody may delete what is made.
func (o *town) fill(perThousand, fails int) {
	for row := range o.worlds[1].View().Datasets.All() {
		name := row.Name
		at := func(cmd domain.Command[domain.Dataset]) {
			_ = o.wish("task", o.worlds[o.random.IntN(2)], domain.Intend(domain.Datasets, name, cmd))
		}
		switch chance := o.random.IntN(1000); {
		case row.State.From == nil:
		case chance < fails && o.random.IntN(4) == 0:
			at(domain.RequestDeletion(domain.Datasets))
			at(domain.DeleteDataset{})
		case row.State.Filling() && chance < fails*10:
			at(domain.LeaveUnfilled{Status: domain.Status{Code: "RESOURCE_EXHAUSTED", Message: "the store is full"}})
		case row.State.Filling() && chance < perThousand:
			held := row.State.From.Split.Held
			if row.State.From.Split.Rest {
				held = row.State.From.Split.Of - held
			}
			at(domain.FillDataset{Files: domain.Files{Folder: string(name), Sizes: map[string]int64{"rows.jsonl": 9}}, DatasetFacts: domain.DatasetFacts{Shape: domain.ShapeChat, ExampleCount: held}})
		}
	}
}

func (o *town) changeDeployment(user func(domain.Intent)) {
	rows := slices.Collect(o.worlds[0].View().Deployments.All())
	if len(rows) == 0 {
		return
	}
	row := rows[o.random.IntN(len(rows))]
	spec := row.State.DeploymentSpec
	spec.MaxContextLength++
	cmds := []domain.Command[domain.Deployment]{domain.ScaleDeployment{Replicas: o.random.IntN(4)}, domain.ScaleDeployment{Replicas: o.random.IntN(4)},
		domain.UpdateDeployment{DeploymentSpec: spec}, domain.UpdateDeployment{DeploymentSpec: spec}, domain.WakeDeployment{}, domain.RequestDeletion(domain.Deployments), domain.DeleteDeployment{},
		domain.DeleteDeployment{Hard: true}, domain.UndeleteDeployment{}}
	user(domain.Intend(domain.Deployments, row.Name, cmds[o.random.IntN(len(cmds))]))
}

// someJob is mostly one that is still on its way.
func (o *town) someJob() domain.Name {
	var lively, others []domain.Name
	for row := range projections.TableOf(o.worlds[0].View(), domain.SupervisedJobs).All() {
		if row.State.Live() {
			lively = append(lively, row.Name)
		} else {
			others = append(others, row.Name)
		}
	}
	if len(lively) > 0 && o.random.IntN(3) > 0 {
		others = lively
	}
	if len(others) == 0 {
		return jobName("none")
	}
	return others[o.random.IntN(len(others))]
}

// purge does what the desk does: it removes the files of deleted jobs.
func (o *town) purge() {
	for row := range projections.TableOf(o.worlds[1].View(), domain.SupervisedJobs).All() {
		if row.State.State == domain.JobCleaningState {
			_ = o.wish("desk", o.worlds[1], domain.IntendJob(row.Name, domain.PurgeJob{}))
		}
	}
}

// calm ends the busy time: nodes stay alive, the account is restored, and what
// users have paused they resume.
func (o *town) calm() {
	o.insist("user", onAccount(domain.RestoreAccount{}))
	for _, agent := range o.agents {
		agent.mend()
	}
	for row := range projections.TableOf(o.worlds[0].View(), domain.SupervisedJobs).All() {
		if row.State.State == domain.JobPausedState && !strings.HasPrefix(row.State.Status.Message, schedulers.SuspendedPrefix) {
			o.insist("user", domain.IntendJob(row.Name, domain.ResumeJob{}))
		}
	}
}

// An agent is one machine: it beats, works on what it holds, and reports.
type agent struct {
	town   *town
	name   domain.Name
	pool   string
	random *rand.Rand
	work   map[string]work // by allocation

	mu   sync.Mutex // never held while the agent waits for anything
	fate fate
}

// fate is what befalls a machine.
type fate struct {
	silent int  // ticks for which it stays silent
	dead   bool // while silent it does not even work
	calm   bool // nothing breaks any more
}

// work is one attempt or replica as the machine knows it.
type work struct {
	domain.Allocation
	done int
}

// strike makes the machine die, or lose its connection while it works on.
func (a *agent) strike(random *rand.Rand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fate = fate{silent: 2 + random.IntN(25), dead: random.IntN(2) == 0}
}

// mend ends the machine's troubles for good.
func (a *agent) mend() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.fate = fate{calm: true}
}

// suffer is the machine's fate in this tick.
func (a *agent) suffer() fate {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.fate
	a.fate.silent = max(0, now.silent-1)
	return now
}

func (a *agent) run(ctx context.Context) {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			a.tick()
		}
	}
}

func (a *agent) tick() {
	now := a.suffer()
	switch {
	case now.silent > 0 && now.dead:
		a.work = nil
		return
	case now.silent > 0: // cut off, it works on and knows nothing
		for id, w := range a.work {
			w.done++
			a.work[id] = w
		}
		return
	}
	world := a.town.worlds[a.random.IntN(len(a.town.worlds))]
	for _, id := range slices.Sorted(maps.Keys(a.work)) { // what it did while it was cut off comes first, however late
		a.report(world, a.work[id], now.calm)
	}
	_ = a.town.wish(string(a.name), world, domain.Intend(domain.Nodes, a.name, domain.RegisterNode{NodeSpec: domain.NodeSpec{
		Pool: a.pool, Engines: []string{"train", "complete"}, Capacity: domain.Resources{CPUMilli: 2000, MemoryMiB: 2048}}}))
	for _, w := range a.town.worlds {
		w.Live().Heartbeat(a.name, time.Now())
	}
	a.obey(world)
}

// obey starts what the world wants of the node and stops the rest.
func (a *agent) obey(world *projections.World) {
	row, ok := world.View().Nodes.Get(a.name)
	wanted := map[string]work{}
	if ok {
		for id, allocation := range row.State.Allocations {
			wanted[id] = work{allocation, a.work[id].done + 1}
		}
	}
	a.work = wanted
}

// report tells how far a piece of work is.
func (a *agent) report(world *projections.World, w work, calm bool) {
	tell := func(intent domain.Intent) { _ = a.town.wish(string(a.name), world, intent) }
	chance := func(percent int) bool { return !calm && a.random.IntN(100) < percent }
	if w.Replica != "" {
		at := func(cmd domain.Command[domain.Deployment]) { tell(domain.Intend(domain.Deployments, w.For, cmd)) }
		switch {
		case chance(1):
			at(domain.RemoveReplica{ID: w.Replica, Reason: "it broke", Failed: true})
		case w.done > 6:
			at(domain.AdvanceReplica{ID: w.Replica, Node: a.name, State: domain.ReplicaReady})
		case w.done > 3:
			at(domain.AdvanceReplica{ID: w.Replica, Node: a.name, State: domain.ReplicaInitializing})
		}
		return
	}
	row, ok := projections.TableOf(world.View(), domain.SupervisedJobs).Get(w.For)
	if !ok || len(row.State.JobLife.Nodes) > 0 && row.State.JobLife.Nodes[0] != a.name {
		return // another node of the gang reports
	}
	at := func(cmd domain.Command[domain.JobLife]) { tell(domain.IntendJob(w.For, cmd)) }
	switch {
	case row.State.State == domain.JobCancellingState:
		if w.done%3 == 0 {
			at(domain.ConfirmCancel{Attempt: w.Attempt})
		}
	case chance(1):
		at(domain.RequeueJob{Attempt: w.Attempt, Reason: "the trainer crashed"})
	case !calm && a.random.IntN(200) == 0:
		at(domain.FailJob{Attempt: w.Attempt, Status: domain.Status{Code: "INVALID_ARGUMENT", Message: "line 2: too long"}})
	case w.done > 20:
		model := domain.NewName("acme", domain.Models.Collection, row.State.OutputModel)
		files := domain.Files{Folder: w.ID}
		at(domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: w.Attempt, Output: model, Results: files,
			Model: domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, SourceJob: w.For, Files: files}}})
	case w.done > 18:
		at(domain.WriteResults{Attempt: w.Attempt})
	case w.done%5 == 0:
		at(domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: w.Attempt, Step: w.done}})
	}
}
