package schedulers_test

import (
	"context"
	"encoding/json"
	"errors"
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
	"anneal/schedulers"
	"anneal/schedulers/queue"
)

// A checker is a log that checks the invariants of a cluster after every event and keeps the first
// violation. At random, it refuses a write or loses an acknowledgement.
type checker struct {
	*eventlog.Memory
	mu         sync.Mutex
	random     *rand.Rand
	nodes      map[domain.Name]domain.Node
	jobs       map[domain.Name]domain.SupervisedJob
	serving    map[domain.Name]domain.Deployment
	datasets   map[domain.Name]domain.Dataset
	models     map[domain.Name]domain.Model
	attempts   map[string]bool           // job name, position in born and attempt number of each attempt that has started
	born       map[domain.Name]uint64    // position of the event that created each job
	registered map[domain.Name]time.Time // when each node was last registered
	heartbeats map[domain.Name]heartbeat // the last heartbeat of each node
	counts     map[string]int            // events by type
	placed     map[string]bool           // node and ID of every allocation that was placed
	violation  error
}

func newChecker(seed uint64) *checker {
	return &checker{Memory: eventlog.NewMemory(), random: rand.New(rand.NewPCG(seed, 2)),
		nodes: map[domain.Name]domain.Node{}, jobs: map[domain.Name]domain.SupervisedJob{},
		serving: map[domain.Name]domain.Deployment{}, datasets: map[domain.Name]domain.Dataset{},
		models: map[domain.Name]domain.Model{}, attempts: map[string]bool{}, born: map[domain.Name]uint64{},
		counts: map[string]int{}, placed: map[string]bool{}, registered: map[domain.Name]time.Time{},
		heartbeats: map[domain.Name]heartbeat{}}
}

// Append implements eventlog.Log.
func (c *checker) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.random.IntN(100) == 0 { // the write does not reach the log
		return 0, domain.Errorf(domain.Unavailable, "the log is unavailable")
	}
	position, err := c.Memory.Append(ctx, w)
	if err != nil {
		return position, err
	}
	w.Position = position
	if err := c.fold(w.Event); err != nil && c.violation == nil {
		c.violation = fmt.Errorf("event %d, %s of %s by %s: %w\n%s", w.Position, w.Type, w.Name, w.Actor, err,
			c.tail(position))
	}
	if err := c.check(w); err != nil && c.violation == nil {
		c.violation = fmt.Errorf("after event %d: %w\n%s", position, err, c.tail(position))
	}
	if c.random.IntN(100) == 0 {
		return 0, eventlog.ErrUncertain
	}
	return position, nil
}

func (c *checker) err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.violation
}

type heartbeat struct {
	sent   time.Time
	silent time.Duration // time without heartbeats before it
}

// heartbeat records that a node sends a heartbeat now.
func (c *checker) heartbeat(node domain.Name) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, now := c.heartbeats[node], time.Now()
	if now.After(last.sent) { // not the same heartbeat to another control plane
		c.heartbeats[node] = heartbeat{now, now.Sub(last.sent)}
	}
}

// wasSilent reports whether the node was silent for LostAfter until shortly before now: it may have
// sent a heartbeat after the decision that it is lost.
func (c *checker) wasSilent(node domain.Name, now time.Time) bool {
	last := c.heartbeats[node]
	since := now.Sub(last.sent)
	return since >= schedulers.LostAfter ||
		since <= schedulers.LostAfter/5+time.Second && last.silent >= schedulers.LostAfter
}

// fold folds the event, after checking the invariants that depend on the previous state.
func (c *checker) fold(e eventlog.Event) error {
	c.counts[e.Type]++
	switch e.Name.Collection() {
	case domain.Nodes.Collection:
		switch e.Type {
		case "node.registered.v1":
			c.registered[e.Name] = time.Now()
		case "node.lost.v1":
			if age := time.Since(c.registered[e.Name]); age < schedulers.LostAfter {
				return fmt.Errorf("%s was marked as lost %s after its registration, before LostAfter", e.Name, age)
			}
			if !c.wasSilent(e.Name, time.Now()) {
				return fmt.Errorf("%s was marked as lost, but sent a heartbeat at %s", e.Name, c.heartbeats[e.Name].sent)
			}
		case "allocation.released.v1":
			return errors.Join(c.unused(e), foldInto(domain.Nodes, c.nodes, e))
		}
		return foldInto(domain.Nodes, c.nodes, e)
	case domain.Deployments.Collection:
		switch e.Type {
		case "replica.placed.v1":
			if err := c.rested(e); err != nil {
				return err
			}
		case "replica.removed.v1":
			if err := c.gaveWay(e); err != nil {
				return err
			}
		}
		return foldInto(domain.Deployments, c.serving, e)
	case domain.Models.Collection:
		return foldInto(domain.Models, c.models, e)
	case domain.Datasets.Collection:
		return foldInto(domain.Datasets, c.datasets, e)
	case domain.SupervisedJobs.Collection:
		before := c.jobs[e.Name]
		if !before.Exists() {
			c.born[e.Name] = e.Position
		}
		if err := foldInto(domain.SupervisedJobs, c.jobs, e); err != nil {
			return err
		}
		return c.fenced(e, before, c.jobs[e.Name])
	}
	return nil
}

// rested requires that a replica that is moved for defragmentation has stayed on its node for
// MoveAgainAfter.
func (c *checker) rested(e eventlog.Event) error {
	var placed domain.ReplicaPlaced
	err := json.Unmarshal(e.Data, &placed)
	if err != nil || !strings.HasPrefix(placed.Reason, schedulers.DefragmentReason) {
		return err
	}
	c.counts["defragmentation"]++
	stayed := e.Time.Sub(c.nodes[c.serving[e.Name].Replicas[placed.Replaces].Node].
		Allocations[domain.ReplicaAllocationID(e.Name, placed.Replaces)].Since)
	if stayed < schedulers.MoveAgainAfter-2*maxOffset {
		return fmt.Errorf("replica %s of %s is moved after %s", placed.Replaces, e.Name, stayed)
	}
	return nil
}

// gaveWay requires that replicas that give way to other work, and replicas that were moved, leave
// their deployment its minimum, or its maximum if they are revocable, and that a replica which
// gives way to a job has run for MinRun.
func (c *checker) gaveWay(e eventlog.Event) error {
	var removed domain.ReplicaRemoved
	if err := json.Unmarshal(e.Data, &removed); err != nil {
		return err
	}
	d := c.serving[e.Name]
	keep := 0
	switch {
	case strings.HasPrefix(removed.Reason, "preempted: "):
		c.counts["gave way"]++
		keep = min(d.MinReplicaCount, d.DesiredReplicas)
		ran := e.Time.Sub(c.nodes[d.Replicas[removed.ID].Node].
			Allocations[domain.ReplicaAllocationID(e.Name, removed.ID)].Since)
		shortest := time.Duration(queue.Default().MinRun)*time.Second - 2*maxOffset
		if strings.Contains(removed.Reason, "a job") && ran < shortest {
			return fmt.Errorf("replica %s of %s gave way to a job after %s", removed.ID, e.Name, ran)
		}
	case strings.HasPrefix(removed.Reason, "moved to node"):
		c.counts["moved"]++
		keep = min(d.MinReplicaCount, d.DesiredReplicas)
	case strings.HasPrefix(removed.Reason, "revoked"):
		c.counts["revoked"]++
		keep = d.MaxReplicas()
	}
	if len(d.Replicas) <= keep {
		return fmt.Errorf("replica %s of %s gave way, which has only %d replicas", removed.ID, e.Name, len(d.Replicas))
	}
	return nil
}

// fenced requires that only the running attempt changes a job by its reports, and that no attempt
// starts twice.
func (c *checker) fenced(e eventlog.Event, before, after domain.SupervisedJob) error {
	_, what, _ := strings.Cut(strings.TrimSuffix(e.Type, ".v1"), ".")
	switch what {
	case "started":
		key := fmt.Sprintf("%s %d %d", e.Name, c.born[e.Name], after.Attempt)
		if c.attempts[key] || after.Attempt != before.NextAttempt() {
			return fmt.Errorf("attempt %d of %s was started twice or out of order", after.Attempt, e.Name)
		}
		c.attempts[key] = true
	case "failed":
		var failed domain.JobFailed
		if err := json.Unmarshal(e.Data, &failed); err != nil {
			return err
		}
		if before.Active() != (failed.Attempt > 0) || failed.Attempt > 0 && failed.Attempt != before.Attempt {
			return fmt.Errorf("attempt %d failed the job %s, which was %s at attempt %d", failed.Attempt, e.Name,
				before.State, before.Attempt)
		}
	case "completed":
		if before.Outcome == nil || c.models[before.Outcome.Output].SourceJob != e.Name {
			return fmt.Errorf("%s was completed before its output model was registered", e.Name)
		}
	case "preempting":
		if limit := queue.Default().MaxPreemptions; after.Preemptions > limit {
			return fmt.Errorf("%s was preempted %d times for other jobs, more than %d times", e.Name, after.Preemptions, limit)
		}
	case "checkpointed", "writing", "resultsStored", "requeued":
		if !before.Active() {
			return fmt.Errorf("%s has the event %s, but no attempt was running", e.Name, e.Type)
		}
	}
	return nil
}

func foldInto[S domain.State](kind *domain.Kind[S], states map[domain.Name]S, e eventlog.Event) error {
	state := states[e.Name]
	err := kind.Fold(&state, e.Record)
	states[e.Name] = state
	return err
}

// check checks the invariants of the states after a write.
func (c *checker) check(w eventlog.Write) error {
	switch w.Name.Collection() {
	case domain.Nodes.Collection:
		return c.checkNode(w)
	case domain.SupervisedJobs.Collection:
		if strings.HasSuffix(w.Type, ".started.v1") {
			return errors.Join(c.checkGang(w.Name), c.checkCarved(w.Name))
		}
	}
	return nil
}

// checkDevices requires that no device has more than its 1,000 thousandths, and that whole and
// shared devices are at most those of the node. It counts independently of domain.Node.Used.
func checkDevices(name domain.Name, node domain.Node) error {
	type slot struct {
		kind   string
		number int
	}
	slots, devices := map[slot]int{}, map[string]int{}
	for _, a := range node.Allocated() {
		for kind, n := range a.Resources.Accelerators {
			share := a.Resources.Share
			if share.Milli == 0 {
				devices[kind] += n
				continue
			}
			if n != 1 || share.Slot < 1 {
				return fmt.Errorf("%s: %s has the share %+v of %d devices", name, a.ID, share, n)
			}
			if slots[slot{kind, share.Slot}] == 0 {
				devices[kind]++
			}
			slots[slot{kind, share.Slot}] += share.Milli
		}
	}
	for at, milli := range slots {
		if milli > 1000 {
			return fmt.Errorf("%s: slot %d of %s has %d thousandths", name, at.number, at.kind, milli)
		}
	}
	for kind, n := range devices {
		if n > node.Capacity.Accelerators[kind] {
			return fmt.Errorf("%s: %d devices of %s are allocated, of %d", name, n, kind, node.Capacity.Accelerators[kind])
		}
	}
	return nil
}

// checkNode requires that no node is overcommitted, and that a lost node has no allocations.
func (c *checker) checkNode(w eventlog.Write) error {
	node := c.nodes[w.Name]
	if !node.Used().Fits(node.Capacity) {
		return fmt.Errorf("%s is overcommitted: %v of %v are allocated", w.Name, node.Used(), node.Capacity)
	}
	if err := checkDevices(w.Name, node); err != nil {
		return err
	}
	if node.State != domain.NodeReady && len(node.Allocations) > 0 {
		return fmt.Errorf("%s is %s, but has %d allocations", w.Name, node.State, len(node.Allocations))
	}
	for _, a := range node.Allocated() {
		c.placed[string(w.Name)+a.ID] = true
	}
	switch {
	case w.Type == "allocation.placed.v1" && node.Cordon != nil:
		return fmt.Errorf("%s is %s, but got an allocation", w.Name, node.Scheduling())
	case node.Scheduling() == domain.NodeDrainedState && len(node.Allocations) > 0:
		return fmt.Errorf("%s is DRAINED, but has %d allocations", w.Name, len(node.Allocations))
	}
	return nil
}

// unused requires that no attempt or replica uses the allocation that the event releases.
func (c *checker) unused(e eventlog.Event) error {
	var released domain.AllocationReleased
	if err := json.Unmarshal(e.Data, &released); err != nil {
		return err
	}
	a := c.nodes[e.Name].Allocations[released.ID]
	life := c.jobs[a.For].JobLife
	switch {
	case a.Replica != "" && c.serving[a.For].Replicas[a.Replica].Node == e.Name:
		return fmt.Errorf("the allocation %s was released while its replica was placed", a.ID)
	case a.Replica == "" && life.Attempt == a.Attempt && slices.Contains(life.Nodes, e.Name):
		return fmt.Errorf("the allocation %s was released while its attempt was running", a.ID)
	}
	return nil
}

// checkGang requires that an attempt starts on all of its nodes: each node has the attempt's
// allocation, unless the node was lost after the reservation.
func (c *checker) checkGang(name domain.Name) error {
	job := c.jobs[name]
	id, want := domain.AllocationID(name, job.Attempt), max(1, job.SupervisedSpec.Nodes)
	if nodes := slices.Compact(slices.Sorted(slices.Values(job.JobLife.Nodes))); len(nodes) != want {
		return fmt.Errorf("%s was started on %d nodes instead of %d", id, len(nodes), want)
	}
	for _, node := range job.JobLife.Nodes {
		held, lost := c.nodes[node].Allocations[id].ID == id, len(c.nodes[node].Allocations) == 0
		if !c.placed[string(node)+id] || !held && !lost {
			return fmt.Errorf("%s was started without its allocation on %s", id, node)
		}
	}
	return nil
}

// checkCarved requires that a job with evalAutoCarveout has both sides of its evaluation split
// before its first attempt.
func (c *checker) checkCarved(name domain.Name) error {
	job := c.jobs[name]
	if job.Attempt > 1 || !job.EvalAutoCarveout {
		return nil
	}
	in := job.JobLife.Inputs
	if in == nil {
		return fmt.Errorf("%s was started without an evaluation split", name)
	}
	train, evaluation := c.datasets[in.Train], c.datasets[in.Evaluation]
	if !train.Exists() || !evaluation.Exists() { // a user may have deleted one of them concurrently
		return nil
	}
	if train.State != domain.DatasetReady || evaluation.State != domain.DatasetReady ||
		train.SourceJobName != string(name) || evaluation.SourceJobName != string(name) {
		return fmt.Errorf("%s was started before its datasets %+v were derived", name, *in)
	}
	a, b := *train.From.Split, *evaluation.From.Split
	a.Rest = false
	if !train.From.Split.Rest || a != b || train.From.Source != domain.Name(job.Dataset) ||
		train.From.Prefix != evaluation.From.Prefix {
		return fmt.Errorf("%s trains on %+v and is evaluated on %+v, which are not two sides of one split", name,
			*train.From, *evaluation.From)
	}
	return nil
}

// tail returns the newest events before a position, for the message of a violation.
func (c *checker) tail(position uint64) string {
	var lines []string
	for p := max(position, 30) - 29; p <= position; p++ {
		if e, err := c.At(context.Background(), p); err == nil {
			lines = append(lines, fmt.Sprintf("%d %s %s %s %s by %s", p, e.Time.Format("15:04:05"), e.Name, e.Type,
				e.Data, e.Actor))
		}
	}
	return strings.Join(lines, "\n")
}

// report logs the number of events by type, and requires that each important type occurred.
func (c *checker) report(t *testing.T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := 0
	for _, name := range slices.Sorted(maps.Keys(c.counts)) {
		total += c.counts[name]
	}
	for _, name := range []string{"node.lost.v1", "node.drained.v1",
		"replica.placed.v1", "replica.removed.v1", "deployment.ready.v1",
		"supervisedFineTuningJob.started.v1", "supervisedFineTuningJob.requeued.v1",
		"supervisedFineTuningJob.completed.v1", "supervisedFineTuningJob.cancelled.v1",
		"supervisedFineTuningJob.preparing.v1", "dataset.filled.v1", "dataset.unfilled.v1"} {
		if c.counts[name] == 0 {
			t.Errorf("the simulation recorded no event %s", name)
		}
	}
	t.Logf("%d events: %v", total, c.counts)
}
