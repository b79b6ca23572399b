// Package queue decides in which order waiting jobs start, and which running jobs are preempted for
// them. It is pure: it has no clock, performs no I/O, draws no random numbers, and computes in
// int64 only, so equal inputs give equal decisions.
//
// The policy, called rules R, orders jobs by a deadline, as earliest deadline first does (Liu and
// Layland, JACM 1973). Young and wide jobs get a short deadline and the others a long one, which is
// the two-level feedback queue of Tiresias (Gu et al., NSDI 2019: 2D-LAS, attained service measured
// in devices × seconds). Deadlines of accounts above their weighted share are postponed, as in fair
// queueing (Demers, Keshav and Shenker, SIGCOMM 1989). Jobs are preempted by slack, with a margin,
// so that two jobs cannot preempt each other in turn. The constants were chosen on the Philly trace
// (Jeon et al., USENIX ATC 2019); docs/adr/0050-queue-order-and-preemption.md has the reasons.
//
// All times are seconds since the Unix epoch, and all durations are seconds. A unit is an
// accelerator, or a CPU core for jobs without accelerators.
package queue

// Rules holds the constants of the policy.
type Rules struct {
	FreshSeconds  int64 // a job is fresh while its seconds of work × units are below this × units of the cluster
	WideFraction  int64 // a job with at least 1/WideFraction of the cluster's units is wide, and always fresh
	MinWide       int64 // minimum number of units of a wide job, which matters in small clusters
	FreshTarget   int64 // seconds that a fresh job may wait in total until its deadline
	LongTarget    int64 // seconds that a job that is not fresh may wait in total until its deadline
	ReplicaTarget int64 // seconds that a replica within minReplicaCount may wait until its deadline
	Extra         int64 // seconds by which deadlines are postponed for an account that uses more than its share
	BoostAfter    int64 // fresh jobs get earlier deadlines once a long job is this many seconds after its deadline
	BoostFactor   int64 // seconds by which deadlines of fresh jobs are earlier, for each second after BoostAfter
	MaxBoost      int64
	MinBoost      int64 // minimum seconds by which deadlines of fresh jobs are earlier, for an account within its share
	Margin        int64 // seconds by which the slack of a preempted job must exceed that of the job that preempts it
	MinRun        int64 // minimum seconds that a job has run before it is preempted
	// minimum seconds that a job has run before it is preempted for guaranteed accelerators: see
	// Account.Guaranteed
	ReclaimAfter   int64
	MaxPreemptions int   // maximum number of preemptions of one job
	Restart        int64 // seconds that a preempted job needs to load its checkpoint
	Priority       int64 // seconds by which one level of Job.Priority moves a job among the jobs of its account
}

// Default returns the constants of rules R.
func Default() Rules {
	return Rules{FreshSeconds: 96, WideFraction: 37, MinWide: 2, FreshTarget: 600, LongTarget: 108_000, ReplicaTarget: 120,
		Extra: 10_800, BoostAfter: 72_000, BoostFactor: 4, MaxBoost: 3_600_000, MinBoost: 86_400, Margin: 28_800,
		MinRun: 1_800, ReclaimAfter: 600, MaxPreemptions: 6, Restart: 120, Priority: 259_200}
}

// fresh reports whether a job is fresh: it is wide (see WideFraction and MinWide), or its units ×
// seconds are below FreshSeconds × cluster. The job has n units and has run for work seconds. The
// cluster has cluster units.
func (r Rules) fresh(n, work, cluster int64) bool {
	return n >= max(r.MinWide, cluster/r.WideFraction) || work*n < r.FreshSeconds*cluster
}

// target returns how many seconds a job may wait in total until its deadline.
func (r Rules) target(fresh bool) int64 {
	if fresh {
		return r.FreshTarget
	}
	return r.LongTarget
}

// boost returns how many seconds earlier the deadlines of fresh jobs are. late is the result of
// updateLate; withinShare is true if the account uses no more than its share. The boost has an
// effect in an overloaded cluster: without it, long jobs whose deadlines have passed would take all
// the capacity, and fresh jobs would wait as long as long jobs do.
func (r Rules) boost(late int64, withinShare bool) int64 {
	boost := min(r.BoostFactor*max(0, late-r.BoostAfter), r.MaxBoost)
	if withinShare {
		boost = max(boost, r.MinBoost)
	}
	return boost
}

// priorityShift returns by how many seconds a priority moves a job among the jobs of its account.
func (r Rules) priorityShift(priority int64) int64 { return r.Priority * priority }

// An Amount is a quantity of resources: what a job takes of each of its nodes, or what is free on a
// node.
type Amount struct {
	Units     int64 // number of accelerators of the job's or the node's accelerator type
	CPUMilli  int64
	MemoryMiB int64
}

// fits reports whether each field of a is at most that of free.
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
	Type     string // accelerator type of the node; "" without accelerators
	Capacity Amount
	Free     Amount // resources that neither running jobs in the queue nor other work uses
}

// An Account owns jobs.
type Account struct {
	Name    string
	Serving bool  // the account has replicas but no jobs, so it has no share of the cluster
	Weight  int64 // share of the cluster, relative to the weights of the other accounts
	Limit   int64 // maximum of Used, the quota of the account; negative if unlimited
	Used    int64 // accelerators that the account uses, including those of its running jobs
	// Guaranteed is the number of accelerators that the account may use at any time. What it uses
	// above this number is borrowed: its jobs are preempted when another account needs its own
	// guaranteed accelerators. If no account has guaranteed accelerators, the value has no effect.
	Guaranteed int64
}

// A Role says whether a Job is a job or a replica of a deployment, and which rules hold for it.
type Role int

// The roles. In the queue, a replica is a job on one node. Whether it runs or waits, its
// accelerators are included in Used of its account.
const (
	Training  Role = iota // a job, not a replica
	Minimum               // waiting replica within minReplicaCount: starts before all jobs, may preempt after its deadline
	Elastic               // replica above minReplicaCount: waits like a fresh job, preempted for jobs after their deadline
	Revocable             // running replica above maxReplicaCount: preempted for every job
)

// A Job is a waiting or running job, or a replica: see Role.
type Job struct {
	ID      string
	Account string
	Type    string // accelerator type; "" for jobs that need only CPUs, whose units are CPU cores
	Class   string // jobs of one class can run on the same nodes: see Snapshot.Accepts
	Nodes   int64  // number of nodes on which the job runs
	Takes   Amount // what the job takes of each node
	Role    Role
	Last    bool // the job starts after all other waiting jobs, and preempts no job

	Arrival     int64 // when the job entered the queue for the first time
	Work        int64 // seconds of work up to the job's last checkpoint
	Preemptions int
	Priority    int64 // priority among the jobs of the same account, higher first; 0 is normal
	Promised    bool  // other jobs were preempted for this job, so it starts before all others

	On         []int // indexes of the nodes on which the job runs; nil while it waits
	Start      int64 // time at which the running attempt began
	Checkpoint int64 // time of the attempt's newest checkpoint; before the first, when its work began
	Stopping   bool  // the job was requested to stop, so its nodes become free soon
}

// units returns how many units a job takes of one node: accelerators, or CPU cores rounded up.
func (j *Job) units() int64 {
	if j.Type == "" && j.Takes.Units == 0 {
		return (j.Takes.CPUMilli + 999) / 1000
	}
	return j.Takes.Units
}

// size returns how many units a job takes of all its nodes together.
func (j *Job) size() int64 { return j.Nodes * j.units() }

// uncheckpointed returns the seconds of work that are lost if the job stops without a checkpoint.
func (j *Job) uncheckpointed(now int64) int64 { return max(0, now-j.Checkpoint) }
