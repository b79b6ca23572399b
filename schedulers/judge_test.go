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
)

// A judge is a log that looks at every event and remembers the first crime. It
// also loses an acknowledgement now and then.
type judge struct {
	*eventlog.Memory
	mu         sync.Mutex
	random     *rand.Rand
	nodes      map[domain.Name]domain.Node
	jobs       map[domain.Name]domain.SupervisedJob
	serving    map[domain.Name]domain.Deployment
	datasets   map[domain.Name]domain.Dataset
	models     map[domain.Name]domain.Model
	attempts   map[string]bool // job, its incarnation, attempt
	born       map[domain.Name]uint64
	registered map[domain.Name]time.Time // when a node last was
	counts     map[string]int            // events by type
	placed     map[string]bool           // node and allocation that was ever placed there
	crime      error
}

func newJudge(seed uint64) *judge {
	return &judge{Memory: eventlog.NewMemory(), random: rand.New(rand.NewPCG(seed, 2)), nodes: map[domain.Name]domain.Node{}, jobs: map[domain.Name]domain.SupervisedJob{},
		serving: map[domain.Name]domain.Deployment{}, datasets: map[domain.Name]domain.Dataset{}, models: map[domain.Name]domain.Model{}, attempts: map[string]bool{}, born: map[domain.Name]uint64{}, counts: map[string]int{}, placed: map[string]bool{}, registered: map[domain.Name]time.Time{}}
}

// Append implements eventlog.Log.
func (j *judge) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.random.IntN(100) == 0 { // whatever is to follow does not
		return 0, domain.Errorf(domain.Unavailable, "the log takes nothing at the moment")
	}
	position, err := j.Memory.Append(ctx, w)
	if err != nil {
		return position, err
	}
	w.Position = position
	if err := j.fold(w.Event); err != nil && j.crime == nil {
		j.crime = fmt.Errorf("event %d, %s of %s by %s: %w\n%s", w.Position, w.Type, w.Name, w.Actor, err, j.tail(position))
	}
	if err := j.check(w); err != nil && j.crime == nil {
		j.crime = fmt.Errorf("after event %d: %w\n%s", position, err, j.tail(position))
	}
	if j.random.IntN(100) == 0 {
		return 0, eventlog.ErrUncertain
	}
	return position, nil
}

func (j *judge) verdict() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.crime
}

// fold takes the event up, after a look at what it must not do.
func (j *judge) fold(e eventlog.Event) error {
	j.counts[e.Type]++
	switch e.Name.Collection() {
	case domain.Nodes.Collection:
		switch e.Type {
		case "node.registered.v1":
			j.registered[e.Name] = e.Time
		case "node.lost.v1":
			if age := e.Time.Sub(j.registered[e.Name]); age < schedulers.LostAfter {
				return fmt.Errorf("lost %s after it registered", age)
			}
		case "allocation.released.v1":
			return errors.Join(j.unused(e), foldInto(domain.Nodes, j.nodes, e))
		}
		return foldInto(domain.Nodes, j.nodes, e)
	case domain.Deployments.Collection:
		return foldInto(domain.Deployments, j.serving, e)
	case domain.Models.Collection:
		return foldInto(domain.Models, j.models, e)
	case domain.Datasets.Collection:
		return foldInto(domain.Datasets, j.datasets, e)
	case domain.SupervisedJobs.Collection:
		before := j.jobs[e.Name]
		if !before.Exists() {
			j.born[e.Name] = e.Position
		}
		if err := foldInto(domain.SupervisedJobs, j.jobs, e); err != nil {
			return err
		}
		return j.fenced(e, before, j.jobs[e.Name])
	}
	return nil
}

// fenced demands that only the attempt that is at work changes a job by its
// reports, and that no attempt begins twice.
func (j *judge) fenced(e eventlog.Event, before, after domain.SupervisedJob) error {
	_, what, _ := strings.Cut(strings.TrimSuffix(e.Type, ".v1"), ".")
	switch what {
	case "started":
		key := fmt.Sprintf("%s %d %d", e.Name, j.born[e.Name], after.Attempt)
		if j.attempts[key] || after.Attempt != before.NextAttempt() {
			return fmt.Errorf("attempt %d runs twice", after.Attempt)
		}
		j.attempts[key] = true
	case "failed":
		var failed domain.JobFailed
		if err := json.Unmarshal(e.Data, &failed); err != nil {
			return err
		}
		if before.Active() != (failed.Attempt > 0) || failed.Attempt > 0 && failed.Attempt != before.Attempt {
			return fmt.Errorf("attempt %d fails a job that is %s at attempt %d", failed.Attempt, before.State, before.Attempt)
		}
	case "completed":
		if before.Outcome == nil || j.models[before.Outcome.Output].SourceJob != e.Name {
			return fmt.Errorf("it completes without its model")
		}
	case "checkpointed", "writing", "resultsStored", "requeued":
		if !before.Active() {
			return fmt.Errorf("no attempt was at work")
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

// check looks at what the writes of one batch have made.
func (j *judge) check(w eventlog.Write) error {
	switch w.Name.Collection() {
	case domain.Nodes.Collection:
		return j.checkNode(w)
	case domain.SupervisedJobs.Collection:
		if strings.HasSuffix(w.Type, ".started.v1") {
			return errors.Join(j.checkGang(w.Name), j.checkCarved(w.Name))
		}
	}
	return nil
}

// checkNode demands room for all that a node holds, and nothing on a lost node.
func (j *judge) checkNode(w eventlog.Write) error {
	node := j.nodes[w.Name]
	if !node.Used().Fits(node.Capacity) {
		return fmt.Errorf("%s is overcommitted: %v of %v", w.Name, node.Used(), node.Capacity)
	}
	if node.State != domain.NodeReady && len(node.Allocations) > 0 {
		return fmt.Errorf("%s is %s and holds %d allocations", w.Name, node.State, len(node.Allocations))
	}
	for _, a := range node.Allocated() {
		j.placed[string(w.Name)+a.ID] = true
	}
	return nil
}

// unused demands that nothing runs on what is released.
func (j *judge) unused(e eventlog.Event) error {
	var released domain.AllocationReleased
	if err := json.Unmarshal(e.Data, &released); err != nil {
		return err
	}
	a := j.nodes[e.Name].Allocations[released.ID]
	life := j.jobs[a.For].JobLife
	switch {
	case a.Replica != "" && j.serving[a.For].Replicas[a.Replica].Node == e.Name:
		return fmt.Errorf("%s is released from under its replica", a.ID)
	case a.Replica == "" && life.Attempt == a.Attempt && slices.Contains(life.Nodes, e.Name):
		return fmt.Errorf("%s is released from under its attempt", a.ID)
	}
	return nil
}

// checkGang demands that an attempt begins with all of its nodes: each has its
// part, unless the node was lost after it was reserved.
func (j *judge) checkGang(name domain.Name) error {
	job := j.jobs[name]
	id, want := domain.AllocationID(name, job.Attempt), max(1, job.SupervisedSpec.Nodes)
	if nodes := slices.Compact(slices.Sorted(slices.Values(job.JobLife.Nodes))); len(nodes) != want {
		return fmt.Errorf("%s begins on %d nodes instead of %d", id, len(nodes), want)
	}
	for _, node := range job.JobLife.Nodes {
		held, lost := j.nodes[node].Allocations[id].ID == id, len(j.nodes[node].Allocations) == 0
		if !j.placed[string(node)+id] || !held && !lost {
			return fmt.Errorf("%s begins without its part of %s", id, node)
		}
	}
	return nil
}

// checkCarved demands that a job that is to hold rows back has them held back
// when it begins, if it never began before: both sides of one split of its own.
func (j *judge) checkCarved(name domain.Name) error {
	job := j.jobs[name]
	if job.Attempt > 1 || !job.EvalAutoCarveout {
		return nil
	}
	in := job.JobLife.Inputs
	if in == nil {
		return fmt.Errorf("%s begins with all rows", name)
	}
	train, evaluation := j.datasets[in.Train], j.datasets[in.Evaluation]
	if !train.Exists() || !evaluation.Exists() { // one may be deleted at the same time
		return nil
	}
	if train.State != domain.DatasetReady || evaluation.State != domain.DatasetReady || train.SourceJobName != string(name) || evaluation.SourceJobName != string(name) {
		return fmt.Errorf("%s begins with %+v, which were not made for it yet", name, *in)
	}
	a, b := *train.From.Split, *evaluation.From.Split
	a.Rest = false
	if !train.From.Split.Rest || a != b || train.From.Source != domain.Name(job.Dataset) || train.From.Folder != evaluation.From.Folder {
		return fmt.Errorf("%s learns from %+v and is measured on %+v", name, *train.From, *evaluation.From)
	}
	return nil
}

// tail is the newest events before a position, for whoever reads of a crime.
func (j *judge) tail(position uint64) string {
	var lines []string
	for p := max(position, 30) - 29; p <= position; p++ {
		if e, err := j.At(context.Background(), p); err == nil {
			lines = append(lines, fmt.Sprintf("%d %s %s %s %s by %s", p, e.Time.Format("15:04:05"), e.Name, e.Type, e.Data, e.Actor))
		}
	}
	return strings.Join(lines, "\n")
}

// report says how much happened, and demands that it was not little.
func (j *judge) report(t *testing.T) {
	j.mu.Lock()
	defer j.mu.Unlock()
	total := 0
	for _, name := range slices.Sorted(maps.Keys(j.counts)) {
		total += j.counts[name]
	}
	for _, name := range []string{"node.lost.v1", "replica.placed.v1", "replica.removed.v1", "deployment.ready.v1",
		"supervisedFineTuningJob.started.v1", "supervisedFineTuningJob.requeued.v1", "supervisedFineTuningJob.completed.v1", "supervisedFineTuningJob.cancelled.v1",
		"supervisedFineTuningJob.preparing.v1", "dataset.filled.v1", "dataset.unfilled.v1"} {
		if j.counts[name] == 0 {
			t.Errorf("%s never happened", name)
		}
	}
	t.Logf("%d events: %v", total, j.counts)
}
