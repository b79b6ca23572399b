// Package queue decides in which order waiting jobs start, and which running jobs are preempted for
// them. It is pure: it has no clock, performs no I/O, draws no random numbers, and computes in int64
// only, so equal inputs give equal decisions.
//
// The policy, called rules R, orders jobs by a deadline, as earliest deadline first does (Liu and
// Layland, JACM 1973). Young and wide jobs get a short deadline and the others a long one, which is
// the two-level feedback queue of Tiresias (Gu et al., NSDI 2019: 2D-LAS, attained service measured
// in devices × seconds). Deadlines of accounts above their weighted share are postponed, as in fair
// queueing (Demers, Keshav and Shenker, SIGCOMM 1989). Jobs are preempted by slack, with a margin, so
// that two jobs cannot preempt each other in turn. The constants were chosen on the Philly trace
// (Jeon et al., USENIX ATC 2019); docs/adr/0050-queue-order-and-preemption.md has the reasons.
//
// All times are seconds since the Unix epoch, and all durations are seconds. A unit is an accelerator,
// or a CPU core for jobs without accelerators.
package queue

// Rules holds the constants of the policy.
type Rules struct {
	FreshSeconds   int64 // a job is fresh while its work × units is below FreshSeconds × units of the cluster
	WideFraction   int64 // a job with units of the cluster / WideFraction, or more, is wide and so always fresh
	MinWide        int64 // minimum number of units of a wide job, for small clusters
	FreshTarget    int64 // seconds that a fresh job waits in total until its deadline
	LongTarget     int64 // the same for a job that is not fresh
	ReplicaTarget  int64 // the same for a replica within the minimum of its deployment
	Extra          int64 // postpones the deadlines of an account that uses more than its share
	BoostAfter     int64 // lateness of long jobs from which fresh jobs are boosted
	BoostFactor    int64 // seconds of boost for each second of lateness after BoostAfter
	MaxBoost       int64
	MinBoost       int64 // minimum boost of fresh jobs of an account within its share
	Margin         int64 // minimum by which the slack of a victim exceeds the slack of the candidate
	MinRun         int64 // minimum seconds that a victim has run
	ReclaimAfter   int64 // the same for a victim whose account borrows: see Account.Guaranteed
	MaxPreemptions int   // maximum preemptions of one job
	Restart        int64 // seconds that a preempted job needs to load its checkpoint
	Priority       int64 // seconds by which one level of Job.Priority moves a job among the jobs of its account
}

// Default returns the constants of rules R.
func Default() Rules {
	return Rules{FreshSeconds: 96, WideFraction: 37, MinWide: 2, FreshTarget: 600, LongTarget: 108_000, ReplicaTarget: 120,
		Extra: 10_800, BoostAfter: 72_000, BoostFactor: 4, MaxBoost: 3_600_000, MinBoost: 86_400, Margin: 28_800,
		MinRun: 1_800, ReclaimAfter: 600, MaxPreemptions: 6, Restart: 120, Priority: 259_200}
}

// fresh reports whether a job of n units with the given work is fresh in a cluster of the given
// number of units.
func (r Rules) fresh(n, work, cluster int64) bool {
	return n >= max(r.MinWide, cluster/r.WideFraction) || work*n < r.FreshSeconds*cluster
}

// target returns the seconds that a job may wait in total before it is due.
func (r Rules) target(fresh bool) int64 {
	if fresh {
		return r.FreshTarget
	}
	return r.LongTarget
}

// boost returns by how many seconds the deadlines of fresh jobs are earlier. late is how late the first
// long job is; withinShare is true if the account uses no more than its share. The boost decides what
// an overloaded cluster does: without it, the old long jobs take all the capacity, and fresh jobs wait
// as long as the long jobs do.
func (r Rules) boost(late int64, withinShare bool) int64 {
	boost := min(r.BoostFactor*max(0, late-r.BoostAfter), r.MaxBoost)
	if withinShare {
		boost = max(boost, r.MinBoost)
	}
	return boost
}

// moved returns by how many seconds a priority moves a job among the jobs of its account.
func (r Rules) priorityShift(priority int64) int64 { return r.Priority * priority }

// An Amount is what a job takes of each of its nodes, or what is free on a node.
type Amount struct {
	Units     int64 // accelerators of the type of the job or node
	CPUMilli  int64
	MemoryMiB int64
}

// fits reports whether a is at most free in every part.
func (a Amount) fits(free Amount) bool {
	return a.Units <= free.Units && a.CPUMilli <= free.CPUMilli && a.MemoryMiB <= free.MemoryMiB
}

func (a Amount) plus(b Amount) Amount {
	return Amount{a.Units + b.Units, a.CPUMilli + b.CPUMilli, a.MemoryMiB + b.MemoryMiB}
}

func (a Amount) minus(b Amount) Amount {
	return Amount{a.Units - b.Units, a.CPUMilli - b.CPUMilli, a.MemoryMiB - b.MemoryMiB}
}

// A Node is a node that can run jobs.
type Node struct {
	Type     string // accelerator type; "" without accelerators
	Capacity Amount
	Free     Amount // without what running jobs of the queue and others hold
}

// An Account owns jobs.
type Account struct {
	Name    string
	Serving bool  // it has replicas and no jobs, so it has no share
	Weight  int64 // its share of the cluster, relative to the weights of the other accounts
	Limit   int64 // maximum accelerators; negative is unlimited
	Used    int64 // accelerators that count toward Limit and Guaranteed, with those of its running jobs
	// Guaranteed is the number of accelerators that the account may use at any time. What it uses above
	// this number is borrowed: its jobs give way when another account needs its guaranteed accelerators.
	// If no account has guaranteed accelerators, the value has no effect.
	Guaranteed int64
}

// A Role says whether a Job is a job or a replica of a deployment, and which rules hold for it.
type Role int

// The roles. A replica takes the place of a job on one node. Its account pays for it in Used whether it
// runs or waits.
const (
	Training  Role = iota // a job
	Minimum               // waiting replica within the minimum: starts before all jobs, and preempts when due
	Elastic               // replica above the minimum: waits like a fresh job, and gives way to jobs that are due
	Revocable             // running replica above the maximum: gives way to every job
)

// A Job is a waiting or running job, or a replica: see Role.
type Job struct {
	ID      string
	Account string
	Type    string // accelerator type; "" for jobs that need only CPUs, whose units are cores
	Class   string // jobs of one class accept the same nodes: see Snapshot.Accepts
	Nodes   int64  // number of nodes
	Takes   Amount // of each node
	Role    Role
	Last    bool // all other jobs are ordered before it, and it preempts none

	Arrival     int64 // when it entered the queue for the first time
	Work        int64 // seconds of work that are in its last checkpoint
	Preemptions int
	Priority    int64 // orders the jobs of its account, and only these; 0 is normal
	Promised    bool  // other jobs were preempted for it, so it starts before all others

	On         []int // nodes of a running job; nil while it waits
	Start      int64 // start of the running attempt
	Checkpoint int64 // time of the attempt's newest checkpoint; before the first, when its work began
	Stopping   bool  // it has been told to stop, so its nodes become free soon
}

// units returns what a job takes of one node: accelerators, or cores rounded up.
func (j *Job) units() int64 {
	if j.Type == "" && j.Takes.Units == 0 {
		return (j.Takes.CPUMilli + 999) / 1000
	}
	return j.Takes.Units
}

// size returns the units of all nodes of a job.
func (j *Job) size() int64 { return j.Nodes * j.units() }

// uncheckpointed returns the seconds of work that are lost if the job stops without a checkpoint.
func (j *Job) uncheckpointed(now int64) int64 { return max(0, now-j.Checkpoint) }
