package replay

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// cpus is the resource type of CPU cores in Result.Utilization.
const cpus = "CPU"

// A Result summarizes what happened in a period, in the log or in a simulation. Times are in
// seconds.
type Result struct {
	Name      string  `json:"name"`
	Jobs      Jobs    `json:"jobs"`
	Wait      Waits   `json:"wait"`  // waits of jobs from entering the queue until their first start
	Gangs     Waits   `json:"gangs"` // waits of jobs that need several nodes; these are included in Wait
	InQueue   float64 `json:"meanTimeInQueue"`
	Accounts  []Group `json:"accounts"`
	Kinds     []Group `json:"kinds"`
	Devices   []Use   `json:"utilization"`
	Preempted int     `json:"preemptions"` // attempts that were preempted for other work or a drain
	Requeued  int     `json:"requeues"`    // attempts that ended while their jobs had not, and were queued again
	GaveWay   int     `json:"replicasThatGaveWay"`

	placements map[domain.Name]placement // by job: when and where it started for the first time
}

// Jobs counts the jobs of a period by what happened to them.
type Jobs struct {
	Arrived   int `json:"arrived"` // jobs that entered the queue in the period, or waited in it when the period began
	Started   int `json:"started"` // arrived jobs that started before the end of the period
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
	Cancelled int `json:"cancelled"` // jobs that were cancelled, including expired and deleted ones
	Waiting   int `json:"waiting"`   // jobs that waited in the queue when the period ended
	Running   int `json:"running"`   // jobs that ran when the period ended
}

// Waits summarizes the waits of jobs. The wait of a job that has not started counts until the end
// of the period.
type Waits struct {
	Jobs int     `json:"jobs"`
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	Max  float64 `json:"max"`
}

// A Group summarizes the jobs of an account or kind.
type Group struct {
	Name      string `json:"name"`
	Completed int    `json:"completed"`
	Wait      Waits  `json:"wait"`
}

// A Use is how much of the capacity of the READY nodes was allocated, for one type of resource.
type Use struct {
	Type     string  `json:"type"` // accelerator type, or CPU for CPU cores
	Percent  float64 `json:"percent"`
	Used     int64   `json:"usedSeconds"` // allocated devices or cores × seconds
	Capacity int64   `json:"capacitySeconds"`
}

// A placement holds the time and the nodes of the first start of a job in a replay.
type placement struct {
	at    time.Time
	nodes string
}

// A meter computes a Result from the events of a period.
type meter struct {
	measure Result
	jobs    map[domain.Name]*measured
	ended   []*measured // deleted jobs whose names were given to new jobs
	nodes   map[domain.Name]domain.Resources
	used    map[domain.Name]domain.Resources
	total   map[string]*use
	now     time.Time
}

// A use holds the sums of the capacity and of the allocations of all nodes for one type of
// resource, and the integrals of these sums over time.
type use struct {
	capacity, used         int64 // current sums over all nodes, in thousandths of a device, or millicores
	capacityTime, usedTime int64 // integrals of capacity and used over time, in milliseconds
}

// A measured is a job that the meter follows, with what the meter knows about it so far.
type measured struct {
	name     domain.Name
	gang     bool
	queued   bool // the job is in the queue
	arrived  bool // the job was counted in Jobs.Arrived
	started  bool
	waiting  bool
	arrival  time.Time
	since    time.Time // time since which the job waits in the queue
	wait     time.Duration
	inQueue  time.Duration
	complete int
}

func newMeter(name string, v *projections.View, from time.Time) *meter {
	m := &meter{measure: Result{Name: name, placements: map[domain.Name]placement{}}, now: from,
		jobs: map[domain.Name]*measured{}, nodes: map[domain.Name]domain.Resources{},
		used: map[domain.Name]domain.Resources{}, total: map[string]*use{}}
	for row := range v.Jobs() {
		life := row.State.Life()
		if life.Terminal() {
			continue
		}
		j := m.job(row.Name, row.State)
		if life.Attempt > 0 || life.Active() {
			j.queued, j.started = true, true
		}
		if life.State == domain.JobPendingState {
			arrival := row.CreateTime
			if life.Arrival != nil {
				arrival = *life.Arrival
			}
			m.enters(j, arrival)
		}
	}
	for row := range v.Nodes.All() {
		m.node(row.Name, &row.State)
	}
	return m
}

func (m *meter) job(name domain.Name, state domain.Job) *measured {
	j := m.jobs[name]
	if j == nil {
		j = &measured{name: name, gang: state.Spec().Nodes > 1}
		m.jobs[name] = j
	}
	return j
}

// enters records that a job enters the queue, where it waits for capacity.
func (m *meter) enters(j *measured, at time.Time) {
	if !j.queued {
		j.queued, j.arrived, j.arrival = true, true, at
	}
	if !j.waiting {
		j.waiting, j.since = true, at
	}
}

// leaves records that a job leaves the queue.
func (j *measured) leaves(at time.Time) {
	if j.waiting {
		j.waiting = false
		j.inQueue += max(0, at.Sub(j.since))
	}
}

// isPreemption reports whether a replica was removed for other work; reason is why it was removed.
// Earlier versions of anneal recorded "gave way" instead of "preempted".
func isPreemption(reason string) bool {
	return slices.ContainsFunc([]string{"revoked: ", "preempted: ", "gave way: "}, func(prefix string) bool {
		return strings.HasPrefix(reason, prefix)
	})
}

// observe counts an event in the result. The world has folded the event already.
func (m *meter) observe(e eventlog.Event, world *projections.World, at time.Time) {
	m.advance(at)
	switch collection := e.Name.Collection(); {
	case collection == domain.Nodes.Collection:
		state, _ := world.Lookup(e.Name).State.(domain.Node)
		m.node(e.Name, &state)
	case e.Type == "replica.removed.v1":
		if isPreemption(reasonOf(e)) {
			m.measure.GaveWay++
		}
	case isJob(collection):
		m.observeJob(e, world, at)
	}
}

func (m *meter) observeJob(e eventlog.Event, world *projections.World, at time.Time) {
	j, known := m.jobs[e.Name]
	_, change := kindAndChange(e)
	switch {
	case change == "created.v1":
		if known {
			m.ended = append(m.ended, j)
			delete(m.jobs, e.Name)
		}
		return
	case !known:
		row, ok := projections.CurrentJob(world, e.Name)
		if !ok {
			return
		}
		j = m.job(e.Name, row.State)
	}
	r := &m.measure
	switch change {
	case "queued.v1", "resumed.v1":
		m.enters(j, at)
	case "started.v1":
		if !j.queued { // a new job that did not have to wait in the queue
			m.enters(j, at)
		}
		j.leaves(at)
		if !j.started && j.arrived {
			j.started, j.wait = true, at.Sub(j.arrival)
			r.Jobs.Started++
			r.placements[e.Name] = placement{at, nodesOf(lifeOf(world, e.Name))}
		}
		j.started = true
	case "preempting.v1":
		r.Preempted++
	case "requeued.v1":
		r.Requeued++
	case "completed.v1", "stepFinished.v1":
		r.Jobs.Completed++
		j.complete++
	case "failed.v1":
		r.Jobs.Failed++
		j.leaves(at)
	case "cancelled.v1", "expired.v1", "deleting.v1":
		if life := lifeOf(world, e.Name); change != "deleting.v1" || j.waiting || life != nil && life.Active() {
			r.Jobs.Cancelled++
		}
		m.abandoned(j, at)
	case "cancelling.v1", "paused.v1":
		m.abandoned(j, at)
	}
}

// abandoned records that a job leaves the queue without a start. Its wait until then counts.
func (m *meter) abandoned(j *measured, at time.Time) {
	if j.waiting && !j.started {
		j.wait = at.Sub(j.arrival)
	}
	j.leaves(at)
}

func nodesOf(life *domain.JobLife) string {
	if life == nil {
		return ""
	}
	var names []string
	for _, node := range life.Nodes {
		names = append(names, node.ID())
	}
	return strings.Join(names, " ")
}

// node replaces the capacity and the allocations of a node in the sums.
func (m *meter) node(name domain.Name, state *domain.Node) {
	m.addNode(name, -1)
	delete(m.nodes, name)
	if state.State == domain.NodeReady {
		m.nodes[name], m.used[name] = state.Capacity, state.Used()
		m.addNode(name, 1)
	}
}

func (m *meter) addNode(name domain.Name, sign int64) {
	capacity, ready := m.nodes[name]
	if !ready {
		return
	}
	used := m.used[name]
	m.of(cpus).capacity += sign * capacity.CPUMilli
	m.of(cpus).used += sign * used.CPUMilli
	for t, n := range capacity.Accelerators {
		m.of(t).capacity += sign * int64(n) * 1000
	}
	for t, n := range used.Accelerators {
		m.of(t).used += sign * int64(n) * 1000
	}
}

func (m *meter) of(kind string) *use {
	if m.total[kind] == nil {
		m.total[kind] = &use{}
	}
	return m.total[kind]
}

// advance adds the time since the previous event to the utilization.
func (m *meter) advance(at time.Time) {
	passed := at.Sub(m.now).Milliseconds()
	if passed <= 0 {
		return
	}
	for _, u := range m.total {
		u.capacityTime += passed * u.capacity
		u.usedTime += passed * u.used
	}
	m.now = m.now.Add(time.Duration(passed) * time.Millisecond)
}

// result returns the Result of the period, which ends at the time end with the view v.
func (m *meter) result(v *projections.View, end time.Time) Result {
	m.advance(end)
	r := m.measure
	accounts, kinds := map[string]*group{}, map[string]*group{}
	var all, gangs waits
	var inQueue time.Duration
	names := slices.Sorted(maps.Keys(m.jobs))
	list := m.ended
	for _, name := range names {
		list = append(list, m.jobs[name])
	}
	for _, j := range list {
		accounts[j.name.Account()] = cmp.Or(accounts[j.name.Account()], &group{})
		kinds[j.name.Collection()] = cmp.Or(kinds[j.name.Collection()], &group{})
		if j.waiting {
			r.Jobs.Waiting++
		}
		if j.waiting && !j.started {
			j.wait = end.Sub(j.arrival)
		}
		j.leaves(end)
		for _, g := range []*group{accounts[j.name.Account()], kinds[j.name.Collection()]} {
			g.completed += j.complete
			if j.arrived {
				g.waits = append(g.waits, j.wait)
			}
		}
		if !j.arrived {
			continue
		}
		r.Jobs.Arrived++
		inQueue += j.inQueue
		all = append(all, j.wait)
		if j.gang {
			gangs = append(gangs, j.wait)
		}
	}
	for row := range v.Jobs() {
		if row.State.Life().Active() {
			r.Jobs.Running++
		}
	}
	r.Wait, r.Gangs = all.summary(), gangs.summary()
	if r.Jobs.Arrived > 0 {
		r.InQueue = seconds(inQueue / time.Duration(r.Jobs.Arrived))
	}
	r.Devices, r.Accounts, r.Kinds = []Use{}, groupsOf(accounts), groupsOf(kinds)
	for _, kind := range slices.Sorted(maps.Keys(m.total)) {
		if u := m.total[kind]; u.capacityTime > 0 {
			r.Devices = append(r.Devices, Use{Type: kind, Percent: float64(u.usedTime*1000/u.capacityTime) / 10,
				Used: u.usedTime / 1_000_000, Capacity: u.capacityTime / 1_000_000})
		}
	}
	return r
}

type group struct {
	completed int
	waits     waits
}

func groupsOf(groups map[string]*group) []Group {
	all := []Group{}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		all = append(all, Group{name, groups[name].completed, groups[name].waits.summary()})
	}
	return all
}

type waits []time.Duration

func (w waits) summary() Waits {
	if len(w) == 0 {
		return Waits{}
	}
	slices.Sort(w)
	var sum time.Duration
	for _, one := range w {
		sum += one
	}
	at := func(percent int) float64 { return seconds(w[min(len(w)-1, len(w)*percent/100)]) }
	return Waits{len(w), seconds(sum / time.Duration(len(w))), at(50), at(95), seconds(w[len(w)-1])}
}

// seconds converts a duration to seconds, rounded to a tenth.
func seconds(d time.Duration) float64 {
	return float64(d.Round(100*time.Millisecond)/(100*time.Millisecond)) / 10
}
