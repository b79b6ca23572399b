package schedulers

import (
	"fmt"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers/queue"
)

// queuePeriod is the time between plans while waiting jobs could preempt other jobs, because a
// deadline passes without an event.
const queuePeriod = time.Minute

// Preempted is the status message of a job that is preempted for another job. It does not name the
// other job, which may belong to another account.
const Preempted = "preempted: the job saves a checkpoint, gives its nodes to another job, and continues when there " +
	"is capacity again"

// A waitingJob is a PENDING or new job with the need of its next attempt.
type waitingJob struct {
	job
	need domain.Need
}

// A jobQueue converts a view into a snapshot for package queue, and the decisions of that package
// into steps of a plan.
type jobQueue struct {
	view      *projections.View
	fleet     *fleet
	now       time.Time
	waiting   map[domain.Name]*waitingJob
	replicas  map[string]*replicaEntry     // by ID of a queue.Job: the replica that it stands for
	minimum   bool                         // at least one replica waits whose deployment is below its minReplicaCount
	chosen    map[domain.Name][]chosenNode // by job: nodes that the method Place returned last
	classes   map[string]domain.Need
	snapshot  queue.Snapshot
	queue     *queue.Queue
	places    map[string]queue.Place // places of waiting jobs after the decisions; nil before the first estimate
	running   map[string]int64       // by account: number of accelerators of its running jobs
	releasing map[string]domain.Resources
	decisions []queue.Decision
}

// newJobQueue returns a jobQueue with the running jobs of a view, and with the jobs in waiting.
func newJobQueue(v *projections.View, f *fleet, now time.Time, waiting []waitingJob) *jobQueue {
	q := &jobQueue{view: v, fleet: f, now: now, waiting: map[domain.Name]*waitingJob{},
		replicas: map[string]*replicaEntry{}, chosen: map[domain.Name][]chosenNode{},
		classes: map[string]domain.Need{}, running: map[string]int64{},
		releasing: map[string]domain.Resources{}}
	q.addNodes()
	for j := range jobs(v) {
		if j.Life.Active() {
			q.addRunning(j)
		}
	}
	q.addReleasing()
	q.addReplicas()
	for i := range waiting {
		q.addWaiting(&waiting[i])
	}
	q.addAccounts()
	q.snapshot.Placer = q
	q.snapshot.Accepts = func(class string, node int) bool { return f.nodes[node].suits(q.classes[class]) }
	q.queue = queue.Of(queue.Default(), q.snapshot)
	return q
}

// decide returns a jobQueue with the decisions for the jobs in waiting. In the fleet f, it
// allocates nodes to the jobs that start now or when preempted jobs have stopped.
func decide(v *projections.View, f *fleet, now time.Time, waiting []waitingJob) *jobQueue {
	q := newJobQueue(v, f, now, waiting)
	q.decisions = q.queue.Pass(now.Unix())
	return q
}

// addNodes adds the READY nodes in the order of the fleet.
func (q *jobQueue) addNodes() {
	for i := range q.fleet.nodes {
		c := &q.fleet.nodes[i]
		kind := commonType(c.Capacity)
		q.snapshot.Nodes = append(q.snapshot.Nodes, queue.Node{Type: kind, Capacity: amount(c.Capacity, kind),
			Free: amount(c.Free, kind)})
	}
}

func amount(r domain.Resources, kind string) queue.Amount {
	return queue.Amount{Units: int64(r.Accelerators[kind]), CPUMilli: r.CPUMilli, MemoryMiB: r.MemoryMiB}
}

// describe returns the queue.Job for j, with the fields that are set for both running and waiting
// jobs.
func (q *jobQueue) describe(j job, takes domain.Resources, nodes int) *queue.Job {
	kind := commonType(takes)
	arrival := j.Created
	if j.Life.Arrival != nil {
		arrival = *j.Life.Arrival
	}
	return &queue.Job{ID: string(j.Name), Account: j.Name.Account(), Type: kind, Nodes: int64(nodes),
		Takes: amount(takes, kind), Arrival: arrival.Unix(), Work: j.Life.Work, Preemptions: j.Life.Preemptions,
		Last: j.spec().Pilot, Priority: j.Life.Priority.Level()}
}

// addRunning adds a running job to the snapshot if all of its nodes are READY. Otherwise, the
// scheduler Nodes requeues its attempt.
func (q *jobQueue) addRunning(j job) {
	d := q.describe(j, j.Life.Resources, len(j.Life.Nodes))
	id := domain.AllocationID(j.Name, j.Life.Attempt)
	for _, name := range j.Life.Nodes {
		node, ready := q.fleet.index[name]
		if !ready || !q.fleet.has(name, id) {
			return
		}
		d.On = append(d.On, node)
	}
	q.addFree(d)
	if d.Type != "" {
		q.running[d.Account] += d.Nodes * d.Takes.Units
	}
	d.Stopping = j.Life.Stopping()
	d.Start = q.now.Unix() // pretend that it has just started, so that it is not preempted while it writes its results
	if j.Life.StartTime != nil && j.Life.State != domain.JobWritingResultsState {
		d.Start = j.Life.StartTime.Unix()
	}
	d.Checkpoint = d.Start
	if last, ok := j.Life.LastCheckpoint(); ok && last.Attempt == j.Life.Attempt {
		d.Checkpoint = max(d.Start, last.Time.Unix())
	}
	q.snapshot.Jobs = append(q.snapshot.Jobs, d)
}

// addReleasing adds the allocations that are about to be released as jobs that are stopping. So no
// jobs are preempted for a job that can get this capacity.
func (q *jobQueue) addReleasing() {
	left := map[slotOnNode]int{}
	for _, a := range q.fleet.endedAllocations(q.view) {
		kind, node := commonType(a.resources), q.fleet.index[a.key.node]
		takes := amount(a.resources, kind)
		if a.resources.Shared() {
			slot := slotOnNode{node, a.resources.DeviceSlot()}
			if left[slot] += a.resources.Share.Milli; left[slot] < q.fleet.nodes[node].Slots[slot.DeviceSlot] {
				takes.Units = 0 // only the last share of a device frees the device
			}
		}
		d := &queue.Job{ID: string(a.key.node) + " " + a.key.id, Type: kind, Nodes: 1, Takes: takes, On: []int{node},
			Start: q.now.Unix(), Checkpoint: q.now.Unix(), Stopping: true}
		q.addFree(d)
		q.releasing[d.ID] = a.resources
		q.snapshot.Jobs = append(q.snapshot.Jobs, d)
	}
}

// A slotOnNode identifies a device that allocations share: a slot (see domain.DeviceShare) of the
// node with this index in the fleet.
type slotOnNode struct {
	node int
	domain.DeviceSlot
}

// addFree adds what a running job takes to the free capacity of its nodes, as queue.Snapshot
// requires.
func (q *jobQueue) addFree(d *queue.Job) {
	for _, node := range d.On {
		free := &q.snapshot.Nodes[node].Free
		free.Units, free.CPUMilli, free.MemoryMiB = free.Units+d.Takes.Units, free.CPUMilli+d.Takes.CPUMilli,
			free.MemoryMiB+d.Takes.MemoryMiB
	}
}

func (q *jobQueue) addWaiting(w *waitingJob) {
	d := q.describe(w.job, w.need.Resources, w.need.Count)
	d.Promised = w.Life.Promised
	_, request := requestOf(w.need)
	d.Class = request.Selector
	q.classes[d.Class] = w.need
	q.waiting[w.Name] = w
	q.snapshot.Jobs = append(q.snapshot.Jobs, d)
}

// addAccounts adds the accounts of all jobs and replicas in the snapshot. Only those with jobs have
// a share of the cluster.
func (q *jobQueue) addAccounts() {
	guaranteed := guaranteedAccelerators(q.view)
	known := map[string]int{"": -1} // index of each account; "" is the account of the jobs that addReleasing adds
	for _, j := range q.snapshot.Jobs {
		serving := j.Role != queue.Training
		if at, added := known[j.Account]; added {
			if at >= 0 && !serving {
				q.snapshot.Accounts[at].Serving = false
			}
			continue
		}
		known[j.Account] = len(q.snapshot.Accounts)
		a := queue.Account{Name: j.Account, Serving: serving, Weight: 1, Limit: -1}
		if row, ok := q.view.Accounts.Get(domain.NewName("", "accounts", j.Account)); ok {
			a.Weight = int64(max(1, row.State.QueueWeight))
		}
		limit, limited := q.view.Quota(j.Account, domain.QuotaAccelerators)
		if limited {
			a.Limit = limit
		}
		a.Guaranteed = guaranteed[j.Account]
		if limited || len(guaranteed) > 0 {
			a.Used = q.view.Usage(j.Account).Accelerators - q.running[j.Account]
		}
		q.snapshot.Accounts = append(q.snapshot.Accounts, a)
	}
}

// Place implements queue.Placer.
func (q *jobQueue) Place(j *queue.Job, held []int) ([]int, bool) {
	name := domain.Name(j.ID)
	need, replicas, ok := q.needOf(j)
	if !ok {
		return nil, false // the job has just been preempted, and starts again after it has stopped
	}
	chosen, ok := q.fleet.placeOutside(q.view, need, held, replicas)
	if !ok {
		return nil, false
	}
	q.chosen[name] = chosen
	nodes := make([]int, len(chosen))
	for i, node := range chosen {
		nodes[i] = q.fleet.index[node.name]
	}
	return nodes, true
}

// needOf returns the need of a waiting job or replica and, for a replica, where the other replicas
// of its deployment are. It returns false for a job that has just been preempted.
func (q *jobQueue) needOf(j *queue.Job) (need domain.Need, replicas *spread, ok bool) {
	if w, ok := q.waiting[domain.Name(j.ID)]; ok {
		return w.need, nil, true
	}
	if r, ok := q.replicas[j.ID]; ok && r.id == "" {
		return r.need, r.of.spread, true
	}
	return domain.Need{}, nil, false
}

// placeOutside is place without the nodes whose indexes are in held.
func (f *fleet) placeOutside(v *projections.View, need domain.Need, held []int, replicas *spread,
) ([]chosenNode, bool) {
	free := make([]domain.Resources, len(held))
	for i, node := range held {
		free[i] = f.nodes[node].Free
		f.take([]domain.Name{f.nodes[node].Name}, free[i])
	}
	chosen, ok := f.place(v, need, replicas)
	for i, node := range held {
		f.release(f.nodes[node].Name, free[i])
	}
	return chosen, ok
}

// Take implements queue.Placer.
func (q *jobQueue) Take(j *queue.Job, nodes []int) {
	if need, _, ok := q.needOf(j); ok {
		q.fleet.take(q.names(nodes), need.Resources)
	}
	if r, ok := q.replicas[j.ID]; ok {
		for _, node := range q.names(nodes) {
			r.of.spread.add(q.fleet.index[node], 1)
		}
	}
}

// Release implements queue.Placer.
func (q *jobQueue) Release(j *queue.Job, nodes []int) {
	resources, known := q.releasing[j.ID]
	if r, replica := q.replicas[j.ID]; replica {
		resources, known = r.resources, true
	}
	if !known {
		running, ok := jobNamed(q.view, domain.Name(j.ID))
		if !ok {
			return
		}
		resources = running.Life.Resources
	}
	for _, node := range nodes {
		q.fleet.release(q.fleet.nodes[node].Name, resources)
	}
}

func (q *jobQueue) names(nodes []int) []domain.Name {
	names := make([]domain.Name, len(nodes))
	for i, node := range nodes {
		names[i] = q.fleet.nodes[node].Name
	}
	return names
}

// carryOut adds steps for the queue's decisions to the plan: starts and preemptions. It returns the
// jobs that start.
func (q *jobQueue) carryOut(plan *Plan) (started map[domain.Name]bool) {
	started = map[domain.Name]bool{}
	waits := q.waitsForCores()
	for _, d := range q.decisions {
		w, ok := q.waiting[domain.Name(d.Job.ID)]
		switch {
		case len(plan.Steps) >= maxSteps:
			return started // the plan is full: Run executes at most maxSteps steps of one plan
		case d.Waits && ok && w.isNew(): // it becomes PENDING before others are preempted for it
		case d.Waits:
			if ok && len(d.Preempt) > 0 {
				plan.add(domain.IntendJob(w.Name, domain.HoldJob{For: capacityOf(w.need), Promised: true}))
			}
			// The next plan preempts the victims for which this plan has no steps left.
			for _, victim := range d.Preempt[:min(len(d.Preempt), maxSteps-len(plan.Steps))] {
				plan.then(q.preemptionOf(victim, d))
			}
		case !ok: // the job has just been preempted, or it is a replica, which the scheduler Replicas places
		default:
			started[w.Name] = true
			need, chosen := w.need, q.chosen[w.Name]
			if !waits {
				need, chosen = q.fleet.withReplicas(q.view, w, chosen)
			}
			q.fleet.gang(plan, w.job, need, chosen, revision(q.view, w.job))
		}
	}
	return started
}

// waitsForCores reports whether a job without accelerators still waits after the decisions.
func (q *jobQueue) waitsForCores() bool {
	starts := map[string]bool{}
	for _, d := range q.decisions {
		starts[d.Job.ID] = !d.Waits
	}
	for name, w := range q.waiting {
		if len(w.need.Resources.Accelerators) == 0 && !starts[string(name)] {
			return true
		}
	}
	return false
}

// withReplicas returns the need of a job that starts now with as many copies of its model for
// rollouts as free CPU cores allow, up to the job's maximum, and the nodes for this need. chosen
// are the nodes for the job with one copy.
func (f *fleet) withReplicas(v *projections.View, w *waitingJob, chosen []chosenNode) (domain.Need, []chosenNode) {
	need, low, high := w.need, 1, w.spec().MaxReplicas()
	if low == high {
		return need, chosen
	}
	for _, node := range chosen {
		f.release(node.name, need.Resources)
	}
	for low < high { // invariant: the job fits with low copies of its model
		middle := (low + high + 1) / 2
		grown := w.need.WithReplicas(middle)
		if nodes, fits := f.place(v, grown, nil); fits {
			need, chosen, low = grown, nodes, middle
		} else {
			high = middle - 1
		}
	}
	f.take(namesOf(chosen), need.Resources)
	return need, chosen
}

// capacityOf returns the status text, without domain.HeldPrefix, of a job that waits for capacity
// for this need.
func capacityOf(need domain.Need) string {
	return fmt.Sprintf("%s: %s", domain.HeldForCapacity, need)
}
