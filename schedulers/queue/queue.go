package queue

import "cmp"

// A Queue holds the waiting and running jobs of a cluster. Pass decides which jobs start and which
// are preempted; the caller reports new and ended jobs with Add and Remove.
type Queue struct {
	rules       Rules
	nodes       []Node
	running     [][]*entry // running[i] has the jobs that run on the node with the index i
	accepts     func(class string, node int) bool
	placer      Placer
	accounts    map[string]*account
	weights     int64
	units       map[string]int64 // total units of the cluster, by accelerator type
	jobs        map[string]*entry
	promised    []*entry
	groups      []*group
	index       map[groupKey]*group
	shapes      map[shape]int
	list        []shape
	now         int64
	late        int64
	priorities  bool  // at least one job has a priority other than 0
	guarantees  bool  // at least one account has guaranteed accelerators
	preemptible int   // number of running replicas that may be preempted: Elastic and Revocable ones
	reserved    []int // indexes of the nodes that are reserved for the job reservedFor: see reserveNodes
	reservedFor *entry
}

// A Placer chooses the nodes of jobs that start without preemption. The queue reports to it every
// change of the free capacity that its decisions make.
type Placer interface {
	// Place returns j.Nodes distinct nodes with enough free capacity for j, none of which is in
	// reserved; false when there are fewer.
	Place(j *Job, reserved []int) ([]int, bool)
	// Take reports that a decision allocates nodes to a job, and Release that one releases them.
	Take(j *Job, nodes []int)
	Release(j *Job, nodes []int)
}

type account struct {
	Account
	running map[string]int64 // units of the account's running jobs, by accelerator type
}

// An entry is a job in the queue.
type entry struct {
	*Job
	account  *account
	group    *group // group of a waiting job; nil while the job runs
	at       int    // index of a waiting job in the heap of its group
	shape    int
	cluster  int64 // total units of the cluster for the job's accelerator type
	deadline int64 // time by which the job should start, set when it begins to wait
}

// A shape is what a job needs of the cluster. If a job does not fit, no job of the same shape does.
type shape struct {
	kind  string
	class string
	nodes int64
	takes Amount
	size  int64
}

// covers reports whether s needs at least what smaller needs: if a job of shape smaller fits
// nowhere, a job of shape s does not either.
func (s shape) covers(smaller shape) bool {
	return s.kind == smaller.kind && s.class == smaller.class && s.nodes >= smaller.nodes &&
		smaller.takes.fits(s.takes)
}

type groupKey struct {
	account string
	shape   int
	fresh   bool
	last    bool
	role    Role
	// priority of the jobs in the group
	priority int64
}

// A group holds the waiting jobs that have the same groupKey. The same extra and boost apply to all
// of them, so their order does not change.
type group struct {
	groupKey
	account *account
	heap    []*entry // heap of the jobs, ordered by deadline and then ID
}

// New returns a queue for these nodes and accounts, without jobs. accepts reports whether jobs of a
// class can run on a node; nil accepts every node with the accelerator type of the job. placer
// chooses the nodes for a job; nil uses best fit, and of equal nodes the first.
func New(rules Rules, nodes []Node, accounts []Account, accepts func(class string, node int) bool,
	placer Placer) *Queue {
	q := &Queue{rules: rules, nodes: nodes, running: make([][]*entry, len(nodes)), accepts: accepts, placer: placer,
		accounts: map[string]*account{}, units: map[string]int64{}, jobs: map[string]*entry{},
		index: map[groupKey]*group{}, shapes: map[shape]int{}}
	for i := range nodes {
		if nodes[i].Type != "" {
			q.units[nodes[i].Type] += nodes[i].Capacity.Units
		}
		q.units[""] += nodes[i].Capacity.CPUMilli / 1000
	}
	// Jobs of the account "" represent capacity that is about to be released.
	q.accounts[""] = &account{Account{Limit: -1}, map[string]int64{}}
	for _, a := range accounts {
		a.Weight = max(1, a.Weight)
		q.guarantees = q.guarantees || a.Guaranteed > 0
		q.accounts[a.Name] = &account{a, map[string]int64{}}
		if !a.Serving {
			q.weights += a.Weight
		}
	}
	return q
}

// Add adds a waiting or running job. Its account must be one of those passed to New, or "" for a
// job that represents capacity that is about to be released.
func (q *Queue) Add(j *Job) {
	e := &entry{Job: j, account: q.accounts[j.Account], cluster: q.units[j.Type]}
	s := shape{j.Type, j.Class, j.Nodes, j.Takes, j.size()}
	number, known := q.shapes[s]
	if !known {
		number = len(q.list)
		q.shapes[s], q.list = number, append(q.list, s)
	}
	e.shape = number
	q.priorities = q.priorities || j.Priority != 0
	q.jobs[j.ID] = e
	if len(j.On) == 0 {
		q.wait(e)
		if j.Promised || j.Role == Minimum {
			q.promised = append(q.promised, e)
		}
		return
	}
	q.run(e, j.On)
}

// Remove removes a job that has ended. What it used on its nodes becomes free.
func (q *Queue) Remove(id string) {
	e, ok := q.jobs[id]
	if !ok {
		return
	}
	delete(q.jobs, id)
	if e.group != nil {
		q.leave(e)
		return
	}
	q.stop(e)
}

// Waiting returns the number of jobs that wait.
func (q *Queue) Waiting() int {
	n := 0
	for _, g := range q.groups {
		n += len(g.heap)
	}
	return n
}

// fresh reports whether a job with this work, in seconds, is fresh: see Rules.fresh.
func (q *Queue) fresh(e *entry, work int64) bool {
	return e.Role != Training || q.rules.fresh(q.list[e.shape].size, work, e.cluster)
}

// wait makes a job wait: it puts the job into the heap of its group.
func (q *Queue) wait(e *entry) {
	fresh := q.fresh(e, e.Work)
	e.deadline = e.Arrival + e.Work + q.rules.target(fresh)
	if e.Role == Minimum {
		e.deadline = e.Arrival + q.rules.ReplicaTarget
	}
	key := groupKey{e.Account, e.shape, fresh, e.Last, e.Role, e.Priority}
	g := q.index[key]
	if g == nil {
		g = &group{groupKey: key, account: e.account}
		q.index[key], q.groups = g, append(q.groups, g)
	}
	e.group, e.at = g, len(g.heap)
	g.heap = append(g.heap, e)
	g.up(e.at)
}

func (q *Queue) leave(e *entry) {
	g, at, last := e.group, e.at, len(e.group.heap)-1
	g.swap(at, last)
	g.heap = g.heap[:last]
	if at < last {
		g.down(at)
		g.up(at)
	}
	e.group = nil
}

// run makes a job run on nodes, and deducts what it takes from what is free on them.
func (q *Queue) run(e *entry, nodes []int) {
	e.On = nodes
	for _, n := range nodes {
		q.nodes[n].Free = q.nodes[n].Free.minus(e.Takes)
		q.running[n] = append(q.running[n], e)
	}
	if e.Role != Training {
		q.preemptible++
		return
	}
	e.account.running[e.Type] += q.list[e.shape].size
	if e.Type != "" {
		e.account.Used += e.Nodes * e.Takes.Units
	}
}

// stop removes a running job from its nodes, and adds what it took to what is free on them.
func (q *Queue) stop(e *entry) {
	for _, n := range e.On {
		q.nodes[n].Free = q.nodes[n].Free.plus(e.Takes)
		for i, other := range q.running[n] {
			if other == e {
				q.running[n] = append(q.running[n][:i], q.running[n][i+1:]...)
				break
			}
		}
	}
	e.On = nil
	if e.Role != Training {
		q.preemptible--
		return
	}
	e.account.running[e.Type] -= q.list[e.shape].size
	if e.Type != "" {
		e.account.Used -= e.Nodes * e.Takes.Units
	}
}

// isOverShare reports whether the running jobs of an account use more units of an accelerator type
// than the account's share of the cluster.
func (q *Queue) isOverShare(a *account, kind string) bool {
	return a.running[kind]*q.weights > q.units[kind]*a.Weight
}

// extra returns by how many seconds the deadlines of an account's jobs are postponed: Rules.Extra
// if the account uses more than its share, otherwise 0.
func (q *Queue) extra(a *account, kind string) int64 {
	if q.isOverShare(a, kind) {
		return q.rules.Extra
	}
	return 0
}

// boost returns how many seconds earlier the deadlines of an account's jobs are: see Rules.boost.
// It is 0 for jobs that are not fresh.
func (q *Queue) boost(a *account, kind string, fresh bool) int64 {
	if !fresh {
		return 0
	}
	return q.rules.boost(q.late, !q.isOverShare(a, kind))
}

// updateLate sets q.late to how many seconds ago the earliest deadline of a waiting long job has
// passed. A long job is one that is neither fresh nor Last.
func (q *Queue) updateLate() {
	q.late = 0
	for _, g := range q.groups {
		if len(g.heap) > 0 && !g.fresh && !g.last {
			q.late = max(q.late, q.now-g.heap[0].deadline-q.extra(g.account, q.list[g.shape].kind))
		}
	}
}

// key returns the adjusted deadline by which the first job of a group is ordered: with extra and
// boost.
func (q *Queue) key(g *group) int64 {
	kind := q.list[g.shape].kind
	return g.heap[0].deadline + q.extra(g.account, kind) - q.boost(g.account, kind, g.fresh)
}

// compare orders the first jobs of two groups: replicas within a minimum come first, and jobs that
// are Last come last; otherwise the order is by key and then by ID. Jobs that are Promised are not
// considered, because startPromised has started them.
func (q *Queue) compare(a, b *group) int {
	return cmp.Or(rank(b.role == Minimum)-rank(a.role == Minimum), rank(a.last)-rank(b.last),
		cmp.Compare(q.key(a), q.key(b)), cmp.Compare(a.heap[0].ID, b.heap[0].ID))
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

func (g *group) less(i, j int) bool {
	a, b := g.heap[i], g.heap[j]
	return a.deadline < b.deadline || a.deadline == b.deadline && a.ID < b.ID
}

func (g *group) swap(i, j int) {
	g.heap[i], g.heap[j] = g.heap[j], g.heap[i]
	g.heap[i].at, g.heap[j].at = i, j
}

func (g *group) up(i int) {
	for i > 0 && g.less(i, (i-1)/2) {
		g.swap(i, (i-1)/2)
		i = (i - 1) / 2
	}
}

func (g *group) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(g.heap) {
			return
		}
		if child+1 < len(g.heap) && g.less(child+1, child) {
			child++
		}
		if !g.less(child, i) {
			return
		}
		g.swap(i, child)
		i = child
	}
}
