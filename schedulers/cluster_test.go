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
	"anneal/projections/live"
	"anneal/schedulers"
)

// A cluster simulates users and worker nodes.
type cluster struct {
	t         *testing.T
	ctx       context.Context
	log       eventlog.Log
	worlds    []*projections.World
	receivers []*receiver // of each world
	agents    []*agent
	random    *rand.Rand
	made      int
	// send records an intent of an actor instead of try; nil in tests without a rivals simulation.
	send func(actor string, world *projections.World, intent domain.Intent) error
	long func(job domain.Name) bool // reports whether a job trains for 40 minutes; nil is never
}

// try records an intent of an actor. It returns the error of a refused intent.
func (c *cluster) try(actor string, world *projections.World, intent domain.Intent) error {
	if c.send != nil {
		return c.send(actor, world, intent)
	}
	result, err := eventlog.Do(c.ctx, c.log, world, eventlog.Request{Time: time.Now().UTC(), Actor: actor}, intent)
	if err == nil && result.Position() > 0 {
		err = world.WaitFor(c.ctx, result.Position())
	}
	return err
}

// mustDo records an intent, and retries while the log is unavailable.
func (c *cluster) mustDo(actor string, intent domain.Intent) {
	err := c.try(actor, c.worlds[0], intent)
	for range 10 {
		if domain.CodeOf(err) != domain.Unavailable {
			break
		}
		err = c.try(actor, c.worlds[0], intent)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// open creates the account, models and datasets that jobs and deployments need.
func (c *cluster) open() {
	for _, intent := range append([]domain.Intent{account(), baseModel("base")},
		dataset("rows", domain.ShapeChat, 9)...) {
		c.mustDo("operator", intent)
	}
}

// step simulates one second of users and failures.
func (c *cluster) step() {
	user := func(intent domain.Intent) { _ = c.try("user", c.worlds[c.random.IntN(2)], intent) }
	c.made++
	id, chance := fmt.Sprintf("x%d", c.made), func(perThousand int) bool { return c.random.IntN(1000) < perThousand }
	if chance(300) { // the name may have been used before
		id = fmt.Sprintf("y%d", c.random.IntN(8))
	}
	if chance(40) {
		user(job(id, func(s *domain.SupervisedSpec) {
			s.Nodes, s.EvalAutoCarveout = c.random.IntN(4), c.random.IntN(2) == 0
		}))
	}
	if chance(6) {
		late := time.Now().Add(time.Duration(1+c.random.IntN(10)) * time.Minute).UTC()
		user(domain.Intend(domain.SupervisedJobs, jobName(id),
			domain.CreateSupervisedJob{ID: id, Deadline: &late, SupervisedSpec: domain.SupervisedSpec{
				Dataset: string(datasetName("rows")), TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName(
					"base"))}}}))
	}
	if chance(4) {
		user(job(id, func(s *domain.SupervisedSpec) { s.Dataset = string(datasetName("nothing")) }))
	}
	if chance(40) {
		cmds := []domain.Command[domain.JobLife]{domain.CancelJob{}, domain.CancelJob{}, domain.DeleteJob{},
			domain.ResumeJob{}, domain.PauseJob{Reason: "by its user"}, domain.SetJobPriority{Priority: domain.PriorityHigh},
			domain.SetJobPriority{Priority: domain.PriorityLow}}
		user(domain.IntendJob(c.someJob(), cmds[c.random.IntN(len(cmds))]))
	}
	if chance(12) && c.worlds[0].View().Deployments.Len() < 12 {
		user(deployment(id, c.random.IntN(3), 3, func(d *domain.DeploymentSpec) {
			d.MaxWithRevocableReplicaCount = []int{0, 5}[c.random.IntN(2)]
			d.PlacementStrategy = domain.PlacementStrategies[c.random.IntN(len(domain.PlacementStrategies))]
			if c.agents[0].devices > 0 && c.random.IntN(3) == 0 {
				d.AcceleratorType, d.AcceleratorCount = l4, 1+c.random.IntN(2)
				if c.random.IntN(3) > 0 {
					d.AcceleratorCount, d.AcceleratorShare = 1, 100+c.random.IntN(800)
				}
			}
			if c.random.IntN(4) == 0 {
				end := time.Now().Add(time.Duration(1+c.random.IntN(30)) * time.Minute).UTC()
				d.ExpireTime = &end
			}
		}))
	}
	if chance(50) {
		c.changeDeployment(user)
	}
	if chance(3) {
		user(onAccount(domain.SuspendAccount{SuspendState: "CREDIT_DEPLETED"}))
	}
	if chance(60) {
		user(onAccount(domain.RestoreAccount{}))
	}
	if chance(12) {
		c.agents[c.random.IntN(len(c.agents))].breakDown(c.random)
	}
	if chance(8) {
		c.receivers[c.random.IntN(len(c.receivers))].close(time.Duration(1+c.random.IntN(60)) * time.Second)
	}
	if chance(20) {
		c.changeScheduling(user)
	}
	c.purge()
	c.fill(200, 5)
}

// changeScheduling cordons, drains or uncordons a node.
func (c *cluster) changeScheduling(user func(domain.Intent)) {
	commands := []domain.Command[domain.Node]{domain.CordonNode{Reason: "maintenance"}, domain.UncordonNode{},
		domain.UncordonNode{},
		domain.DrainNode{Reason: "maintenance", Within: time.Duration(c.random.IntN(120)) * time.Second}}
	node := c.agents[c.random.IntN(len(c.agents))].name
	user(domain.Intend(domain.Nodes, node, commands[c.random.IntN(len(commands))]))
}

// A receiver simulates how a control plane receives heartbeats: not while it is disconnected or
// paused.
type receiver struct {
	live    *live.Status
	checker *checker         // learns of all heartbeats; nil in tests without one
	clock   func() time.Time // of the control plane; nil is time.Now

	mu     sync.Mutex
	closed time.Time // no heartbeats are received before this time
	paused bool      // reception was closed at the last tick
}

// close stops the reception of heartbeats for a time.
func (r *receiver) close(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = time.Now().Add(d)
}

func (r *receiver) receive(node domain.Name) {
	if r.checker != nil {
		r.checker.heartbeat(node)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !time.Now().Before(r.closed) {
		r.live.Heartbeat(node, r.now())
	}
}

func (r *receiver) now() time.Time {
	if r.clock == nil {
		return time.Now()
	}
	return r.clock()
}

// run records every second the time up to which heartbeats were received, like the listener of a
// coordinator.
func (r *receiver) run(ctx context.Context) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			r.tick(now)
		}
	}
}

// tick records that heartbeats were received until now, unless they were not.
func (r *receiver) tick(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch was := r.paused; {
	case time.Now().Before(r.closed):
		r.paused = true
	case was:
		r.paused = false
		r.live.ListenFrom(now)
		fallthrough
	default:
		r.live.ReceivedAll(now)
	}
}

// fill simulates the task that derives datasets. The probability to derive a pending dataset is
// perThousand in 1,000. A higher value of fails makes more derivations fail and deletes more
// datasets.
func (c *cluster) fill(perThousand, fails int) {
	for row := range c.worlds[1].View().Datasets.All() {
		name := row.Name
		at := func(cmd domain.Command[domain.Dataset]) {
			_ = c.try("task", c.worlds[c.random.IntN(2)], domain.Intend(domain.Datasets, name, cmd))
		}
		switch chance := c.random.IntN(1000); {
		case row.State.From == nil:
		case chance < fails && c.random.IntN(4) == 0:
			at(domain.RequestDeletion(domain.Datasets))
			at(domain.DeleteDataset{})
		case row.State.Filling() && chance < fails*10:
			at(domain.FailFill{Status: domain.Status{Code: "RESOURCE_EXHAUSTED", Message: "the store is full"}})
		case row.State.Filling() && chance < perThousand:
			held := row.State.From.Split.Held
			if row.State.From.Split.Rest {
				held = row.State.From.Split.Of - held
			}
			at(domain.FillDataset{Files: domain.Files{Prefix: string(name), Sizes: map[string]int64{"rows.jsonl": 9}},
				DatasetStats: domain.DatasetStats{Shape: domain.ShapeChat, ExampleCount: held}})
		}
	}
}

func (c *cluster) changeDeployment(user func(domain.Intent)) {
	rows := slices.Collect(c.worlds[0].View().Deployments.All())
	if len(rows) == 0 {
		return
	}
	row := rows[c.random.IntN(len(rows))]
	spec := row.State.DeploymentSpec
	spec.MaxContextLength++
	cmds := []domain.Command[domain.Deployment]{domain.ScaleDeployment{Replicas: c.random.IntN(6)},
		domain.ScaleDeployment{Replicas: c.random.IntN(4)},
		domain.UpdateDeployment{DeploymentSpec: spec}, domain.UpdateDeployment{DeploymentSpec: spec},
		domain.WakeDeployment{}, domain.RequestDeletion(domain.Deployments), domain.DeleteDeployment{},
		domain.DeleteDeployment{Hard: true}, domain.UndeleteDeployment{}}
	user(domain.Intend(domain.Deployments, row.Name, cmds[c.random.IntN(len(cmds))]))
}

// someJob returns the name of a random job, usually of a live job.
func (c *cluster) someJob() domain.Name {
	var lively, others []domain.Name
	for row := range projections.TableOf(c.worlds[0].View(), domain.SupervisedJobs).All() {
		if row.State.Live() {
			lively = append(lively, row.Name)
		} else {
			others = append(others, row.Name)
		}
	}
	if len(lively) > 0 && c.random.IntN(3) > 0 {
		others = lively
	}
	if len(others) == 0 {
		return jobName("none")
	}
	return others[c.random.IntN(len(others))]
}

// purge purges deleted jobs, as the coordinator does.
func (c *cluster) purge() {
	for row := range projections.TableOf(c.worlds[1].View(), domain.SupervisedJobs).All() {
		if row.State.State == domain.JobCleaningUpState {
			_ = c.try("coordinator", c.worlds[1], domain.IntendJob(row.Name, domain.PurgeJob{}))
		}
	}
}

// endFailures ends the failures: nodes stay alive, the account is restored, and users resume paused
// jobs.
func (c *cluster) endFailures() {
	c.mustDo("user", onAccount(domain.RestoreAccount{}))
	for _, agent := range c.agents {
		agent.repair()
		if _, known := c.worlds[0].View().Nodes.Get(agent.name); known {
			c.mustDo("operator", domain.Intend(domain.Nodes, agent.name, domain.UncordonNode{}))
		}
	}
	c.resume()
}

// resume resumes the jobs that users have paused.
func (c *cluster) resume() {
	for row := range projections.TableOf(c.worlds[0].View(), domain.SupervisedJobs).All() {
		if row.State.State == domain.JobPausedState && !strings.HasPrefix(row.State.Status.Message,
			schedulers.SuspendedPrefix) {
			_ = c.try("user", c.worlds[0], domain.IntendJob(row.Name, domain.ResumeJob{}))
		}
	}
}

// An agent simulates one worker node: it sends heartbeats, runs its assignments, and reports.
type agent struct {
	cluster *cluster
	name    domain.Name
	pool    string
	devices int // of type l4
	random  *rand.Rand
	work    map[string]work // by allocation ID

	mu     sync.Mutex // never held while the agent waits for anything
	outage outage
}

// An outage is a failure of a machine.
type outage struct {
	silent    int  // remaining ticks without heartbeats
	dead      bool // the machine runs nothing while it sends no heartbeats
	endFaults bool // the machine does not fail any more
}

// work is one attempt or replica on the machine.
type work struct {
	domain.Allocation
	done int
}

// breakDown stops the machine, or only its connection, for a random time.
func (a *agent) breakDown(random *rand.Rand) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outage = outage{silent: 2 + random.IntN(25), dead: random.IntN(2) == 0}
}

// repair ends all failures of the machine.
func (a *agent) repair() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.outage = outage{endFaults: true}
}

// nextOutage returns the current failure, and advances it by one tick.
func (a *agent) nextOutage() outage {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.outage
	a.outage.silent = max(0, now.silent-1)
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
	now := a.nextOutage()
	switch {
	case now.silent > 0 && now.dead:
		a.work = nil
		return
	case now.silent > 0: // disconnected: its work continues
		for id, w := range a.work {
			w.done++
			a.work[id] = w
		}
		return
	}
	world := a.cluster.worlds[a.random.IntN(len(a.cluster.worlds))]
	for _, id := range slices.Sorted(maps.Keys(a.work)) { // first reports what ran while the node was disconnected
		a.report(world, a.work[id], now.endFaults)
	}
	_ = a.cluster.try(string(a.name), world, domain.Intend(domain.Nodes, a.name,
		domain.RegisterNode{NodeSpec: domain.NodeSpec{
			Pool: a.pool, Engines: []string{"train", "complete", domain.ShareAbility, domain.GangAbility},
			Capacity: a.capacity(),
			Labels:   map[string]string{domain.ZoneLabel: fmt.Sprint((a.name[len(a.name)-1] - '0') / 2)}}}))
	for _, receiver := range a.cluster.receivers {
		receiver.receive(a.name)
	}
	a.apply(world)
}

func (a *agent) capacity() domain.Resources {
	capacity := domain.Resources{CPUMilli: 2000, MemoryMiB: 2048}
	if a.devices > 0 {
		capacity.Accelerators = map[string]int{l4: a.devices}
	}
	return capacity
}

// apply starts the work that is assigned to the node and stops all other work.
func (a *agent) apply(world *projections.World) {
	row, ok := world.View().Nodes.Get(a.name)
	wanted := map[string]work{}
	if ok {
		for id, allocation := range row.State.Allocations {
			wanted[id] = work{allocation, a.work[id].done + 1}
		}
	}
	a.work = wanted
}

// report reports the progress of one attempt or replica.
func (a *agent) report(world *projections.World, w work, endFaults bool) {
	report := func(intent domain.Intent) { _ = a.cluster.try(string(a.name), world, intent) }
	chance := func(percent int) bool { return !endFaults && a.random.IntN(100) < percent }
	if w.Replica != "" {
		at := func(cmd domain.Command[domain.Deployment]) { report(domain.Intend(domain.Deployments, w.For, cmd)) }
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
		return // the first node of the gang reports
	}
	at := func(cmd domain.Command[domain.JobLife]) { report(domain.IntendJob(w.For, cmd)) }
	last, every := 20, 5
	if a.cluster.long != nil && a.cluster.long(w.For) {
		last, every = 1200, 150
	}
	switch {
	case row.State.State == domain.JobCancellingState:
		if w.done%3 == 0 {
			at(domain.ConfirmCancel{Attempt: w.Attempt})
		}
	case row.State.JobLife.Stopping() && w.done%3 == 0:
		at(row.State.JobLife.ConfirmStop(w.Attempt))
	case chance(1):
		at(domain.RequeueJob{Attempt: w.Attempt, Reason: "the trainer crashed"})
	case !endFaults && a.random.IntN(200) == 0:
		at(domain.FailJob{Attempt: w.Attempt, Status: domain.Status{Code: "INVALID_ARGUMENT",
			Message: "line 2: too long"}})
	case w.done > last:
		model := domain.NewName("acme", domain.Models.Collection, row.State.OutputModel)
		files := domain.Files{Prefix: w.ID}
		at(domain.StoreResults{JobOutcome: domain.JobOutcome{Attempt: w.Attempt, Output: model, Results: files,
			Model: domain.ModelRegistered{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, SourceJob: w.For,
				Files: files}}})
	case w.done > last-2:
		at(domain.WriteResults{Attempt: w.Attempt})
	case w.done%every == 0:
		at(domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Attempt: w.Attempt, Step: w.done}})
	}
}
