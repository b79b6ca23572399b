package schedulers_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
	"anneal/schedulers/queue"
)

var (
	faultyNode       = nodeName("n1")
	faultyJob        = jobName("j1")
	faultyDeployment = deploymentName("d1")
	oneL4            = domain.Resources{CPUMilli: 1000, Accelerators: map[string]int{l4: 1}}
)

// shareOf returns the resources of a share of an L4.
func shareOf(slot, milli, devices int) domain.Resources {
	return domain.Resources{Accelerators: map[string]int{l4: devices}, Share: domain.DeviceShare{Slot: slot, Milli: milli}}
}

// A checkerFault is an event that violates an invariant, and the states before it.
type checkerFault struct {
	name   string
	before func(c *checker)
	on     domain.Name
	event  string // type of the event
	data   any
}

// nodeWith returns a node in a state, with allocations.
func nodeWith(state string, allocations ...domain.Allocation) domain.Node {
	n := domain.Node{NodeSpec: domain.NodeSpec{Capacity: domain.Resources{CPUMilli: 2000, MemoryMiB: 2048,
		Accelerators: map[string]int{l4: 2}}}, State: state, Allocations: map[string]domain.Allocation{}}
	for _, a := range allocations {
		n.Allocations[a.ID] = a
	}
	return n
}

func allocationOf(id string, takes domain.Resources) domain.Allocation {
	return domain.Allocation{ID: id, For: faultyJob, Attempt: 9, Resources: takes}
}

// jobAt sets the state of the job on which faults are planted.
func jobAt(change func(j *domain.SupervisedJob)) func(*checker) {
	return func(c *checker) {
		j := domain.SupervisedJob{JobLife: domain.JobLife{State: domain.JobRunningState, Attempt: 1,
			Nodes: []domain.Name{faultyNode}}}
		if change != nil {
			change(&j)
		}
		c.jobs[faultyJob] = j
	}
}

// nodeAt sets the state of the node on which faults are planted.
func nodeAt(n domain.Node) func(*checker) {
	return func(c *checker) { c.nodes[faultyNode] = n }
}

// carved makes the first attempt of a job with a carved evaluation split ready to start.
func carved(train, evaluation *domain.Split) func(*checker) {
	return func(c *checker) {
		jobAt(func(j *domain.SupervisedJob) {
			j.EvalAutoCarveout, j.Dataset, j.JobLife.Attempt = true, string(datasetName("rows")), 0
			if train != nil {
				j.JobLife.Inputs = &domain.JobInputs{Train: datasetName("train"), Evaluation: datasetName("eval")}
			}
		})(c)
		id := domain.AllocationID(faultyJob, 1)
		c.nodes[faultyNode] = nodeWith(domain.NodeReady, domain.Allocation{ID: id, For: faultyJob, Attempt: 1})
		c.placed[string(faultyNode)+id] = true
		for name, split := range map[string]*domain.Split{"train": train, "eval": evaluation} {
			d := domain.Dataset{State: domain.DatasetReady,
				From: &domain.Derivation{Source: datasetName("rows"), Split: split}}
			d.SourceJobName = string(faultyJob)
			if split == nil {
				d.State = domain.DatasetUploading
			}
			c.datasets[datasetName(name)] = d
		}
	}
}

// twoReplicas sets the state of the deployment on which faults are planted, with two replicas.
func twoReplicas(minimum, maximum, desired int, runs time.Duration) func(*checker) {
	return func(c *checker) {
		d := domain.Deployment{DeploymentSpec: domain.DeploymentSpec{MinReplicaCount: minimum, MaxReplicaCount: &maximum},
			State: domain.DeploymentReadyState, DesiredReplicas: desired, Replicas: map[string]domain.Replica{}}
		n := nodeWith(domain.NodeReady)
		for _, id := range []string{"r1", "r2"} {
			d.Replicas[id] = domain.Replica{ID: id, Node: faultyNode}
			a := domain.Allocation{ID: domain.ReplicaAllocationID(faultyDeployment, id), For: faultyDeployment,
				Replica: id, Since: noon.Add(-runs)}
			n.Allocations[a.ID] = a
		}
		c.serving[faultyDeployment], c.nodes[faultyNode] = d, n
	}
}

// onFaultyJob returns a fault of an event of the job.
func onFaultyJob(name, event string, change func(j *domain.SupervisedJob), data any) checkerFault {
	return checkerFault{name, jobAt(change), faultyJob, "supervisedFineTuningJob." + event + ".v1", data}
}

func placed(name string, n domain.Node, takes domain.Resources) checkerFault {
	return checkerFault{name, nodeAt(n), faultyNode, "allocation.placed.v1",
		domain.AllocationPlaced{Allocation: allocationOf("new", takes)}}
}

func started(nodes ...domain.Name) domain.JobStarted {
	return domain.JobStarted{Attempt: 1, Nodes: nodes, Time: noon}
}

func checkerFaults() []checkerFault {
	lost := func(before func(*checker)) checkerFault {
		return checkerFault{"lost node", before, faultyNode, "node.lost.v1", domain.NodeLost{Reason: "silent"}}
	}
	removed := func(name string, before func(*checker), reason string) checkerFault {
		return checkerFault{name, before, faultyDeployment, "replica.removed.v1",
			domain.ReplicaRemoved{ID: "r2", Reason: reason}}
	}
	released := func(name, id string, before func(*checker)) checkerFault {
		return checkerFault{name, before, faultyNode, "allocation.released.v1", domain.AllocationReleased{ID: id}}
	}
	cordoned, drained := nodeWith(domain.NodeReady), nodeWith(domain.NodeReady, allocationOf("old", oneL4))
	cordoned.Cordon = &domain.NodeCordon{Reason: "maintenance"}
	drained.Cordon = &domain.NodeCordon{Reason: "maintenance", Deadline: noon, Drained: noon}
	before := func(j *domain.SupervisedJob) { j.JobLife.Attempt, j.JobLife.Nodes = 0, nil }
	split := &domain.Split{Held: 1, Of: 9}
	return []checkerFault{
		lost(func(c *checker) { nodeAt(nodeWith(domain.NodeReady))(c); c.registered[faultyNode] = time.Now() }),
		lost(func(c *checker) {
			nodeAt(nodeWith(domain.NodeReady))(c)
			c.heartbeats[faultyNode] = heartbeat{time.Now(), time.Second}
		}),
		removed("minimum", twoReplicas(2, 2, 2, time.Hour), "preempted: the capacity is needed for a job"),
		removed("minimum after a move", twoReplicas(2, 2, 2, time.Hour), "moved to node n2"),
		{"move of a replica that was just moved", twoReplicas(0, 2, 2, time.Minute), faultyDeployment,
			"replica.placed.v1", domain.ReplicaPlaced{ID: "r3", Replaces: "r2", Reason: schedulers.DefragmentReason}},
		removed("maximum", twoReplicas(0, 2, 2, time.Hour), "revoked: the capacity is needed for a job"),
		removed("replica that just started", twoReplicas(0, 2, 2, time.Minute),
			"preempted: the capacity is needed for a job"),
		onFaultyJob("repeated attempt", "started", nil, started(faultyNode)),
		onFaultyJob("failure of an old attempt", "failed", func(j *domain.SupervisedJob) { j.JobLife.Attempt = 2 },
			domain.JobFailed{Attempt: 1}),
		onFaultyJob("no output model", "completed", func(j *domain.SupervisedJob) {
			j.Outcome = &domain.JobOutcome{Output: modelName("m1")}
		}, domain.JobCompleted{}),
		onFaultyJob("preemption loop", "preempting", func(j *domain.SupervisedJob) {
			j.Preemptions = queue.Default().MaxPreemptions
		}, domain.JobPreempting{Attempt: 1, Queue: true}),
		onFaultyJob("report without an attempt", "checkpointed", before, domain.JobCheckpointed{}),
		placed("overcommitted CPU", nodeWith(domain.NodeReady), domain.Resources{CPUMilli: 2001}),
		placed("overcommitted devices", nodeWith(domain.NodeReady, allocationOf("old", oneL4)),
			domain.Resources{Accelerators: map[string]int{l4: 2}}),
		placed("share of two devices", nodeWith(domain.NodeReady), shareOf(1, 500, 2)),
		placed("overcommitted device", nodeWith(domain.NodeReady, allocationOf("old", shareOf(1, 600, 1))),
			shareOf(1, 500, 1)),
		placed("lost node", nodeWith(domain.NodeLostState), oneL4),
		placed("cordoned node", cordoned, oneL4),
		{"drained node", nodeAt(drained), faultyNode, "node.registered.v1",
			domain.NodeRegistered{NodeSpec: drained.NodeSpec}},
		released("running replica", domain.ReplicaAllocationID(faultyDeployment, "r1"), twoReplicas(0, 2, 2, time.Hour)),
		released("running attempt", domain.AllocationID(faultyJob, 1), func(c *checker) {
			jobAt(nil)(c)
			nodeAt(nodeWith(domain.NodeReady, domain.Allocation{ID: domain.AllocationID(faultyJob, 1), For: faultyJob,
				Attempt: 1}))(c)
		}),
		onFaultyJob("partial gang", "started", func(j *domain.SupervisedJob) {
			before(j)
			j.SupervisedSpec.Nodes = 2
		}, started(faultyNode)),
		onFaultyJob("attempt without allocation", "started", before, started(faultyNode)),
		{"no split", carved(nil, nil), faultyJob, "supervisedFineTuningJob.started.v1", started(faultyNode)},
		{"split without rows", carved(split, nil), faultyJob, "supervisedFineTuningJob.started.v1", started(faultyNode)},
		{"two splits", carved(&domain.Split{Held: 2, Of: 9, Rest: true}, split), faultyJob,
			"supervisedFineTuningJob.started.v1", started(faultyNode)},
	}
}

// TestCheckerFindsFaults plants a fault for every violation that the checker can report: a message
// of checker_test.go that no fault causes fails the test.
func TestCheckerFindsFaults(t *testing.T) {
	var found []string
	for _, fault := range checkerFaults() {
		c := newChecker(1)
		fault.before(c)
		data, err := json.Marshal(fault.data)
		require.NoError(t, err)
		w := eventlog.Write{Event: eventlog.Event{Record: domain.Record{Type: fault.event, Data: data},
			ID: "018f0000-0000-7000-8000-000000000000", Name: fault.on, Time: noon, Actor: "test"}}
		for w.Expect == 0 { // the log loses writes at random
			if _, err = c.Append(t.Context(), w); domain.CodeOf(err) != domain.Unavailable {
				break
			}
		}
		require.NoError(t, err, fault.name)
		require.Error(t, c.err(), "the checker does not find the fault %q", fault.name)
		found = append(found, strings.Split(c.err().Error(), "\n")[0])
	}
	// the domain counts devices too, so that only a wrong count of the domain gets past it
	twice := nodeWith(domain.NodeReady, allocationOf("a", oneL4), allocationOf("b", oneL4), allocationOf("c", oneL4))
	require.Error(t, checkDevices(faultyNode, twice))
	found = append(found, checkDevices(faultyNode, twice).Error())
	requireEveryMessage(t, "checker_test.go", []string{"fold", "rested", "gaveWay", "fenced", "checkDevices", "checkNode",
		"unused", "checkGang", "checkCarved"}, found)
}

// TestInvariantsFindFaults plants a fault for each state that a simulation must not be in for long,
// or at its end: see invariantViolations and unfinished.
func TestInvariantsFindFaults(t *testing.T) {
	create := func(data any) recorded { return recorded{faultyDeployment, "deployment.created.v1", data} }
	ready := recorded{faultyDeployment, "deployment.ready.v1", domain.DeploymentBecameReady{Generation: 1}}
	orphan := []recorded{{faultyNode, "node.registered.v1", domain.NodeRegistered{}},
		{faultyNode, "allocation.placed.v1", domain.AllocationPlaced{Allocation: allocationOf("old", oneL4)}}}
	var found []string
	for _, events := range [][]recorded{
		{{faultyJob, "supervisedFineTuningJob.created.v1", domain.SupervisedJobCreated{}},
			{faultyJob, "supervisedFineTuningJob.started.v1", started(faultyNode)}},
		{create(domain.DeploymentCreated{}), ready,
			{faultyDeployment, "replica.placed.v1", domain.ReplicaPlaced{ID: "r1", Node: faultyNode}}},
		orphan,
		{{datasetName("rows"), "dataset.created.v1", domain.DatasetCreated{From: &domain.Derivation{}}}},
		{create(domain.DeploymentCreated{DeploymentSpec: domain.DeploymentSpec{ExpireTime: &noon}}), ready},
		{create(domain.DeploymentCreated{DeploymentSpec: domain.DeploymentSpec{MinReplicaCount: 1}}), ready},
		{create(domain.DeploymentCreated{})},
	} {
		view := viewOf(t, events)
		found = append(found, unfinished(view))
		found = append(found, invariantViolations(view)...)
	}
	requireEveryMessage(t, "simulation_test.go", []string{"invariantViolations", "unfinished"}, found)
	w := watch{since: map[string]int{}}
	for range repairTime {
		w.look(t, viewOf(t, orphan))
	}
	require.Equal(t, []int{repairTime}, slices.Collect(maps.Values(w.since)), "it is tolerated no longer")
}

// verb matches the verbs of a quoted format.
var verb = regexp.MustCompile(`%\\?\+?[a-z]`)

// requireEveryMessage requires that each message that the functions of a file can report was found.
func requireEveryMessage(t *testing.T, file string, functions, found []string) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	require.NoError(t, err)
	messages := 0
	for _, declaration := range parsed.Decls {
		f, ok := declaration.(*ast.FuncDecl)
		if !ok || !slices.Contains(functions, f.Name.Name) {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			called, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || called.Sel.Name != "Errorf" && called.Sel.Name != "Sprintf" {
				return true
			}
			format, err := strconv.Unquote(call.Args[0].(*ast.BasicLit).Value)
			require.NoError(t, err)
			if format == "%s %d %d" { // the key of an attempt
				return true
			}
			messages++
			pattern := regexp.MustCompile(verb.ReplaceAllString(regexp.QuoteMeta(format), ".*"))
			require.True(t, slices.ContainsFunc(found, pattern.MatchString), "no fault causes %q of %s", format, f.Name.Name)
			return true
		})
	}
	require.Greater(t, messages, len(functions))
}

// A recorded value is an event in a log.
type recorded struct {
	on    domain.Name
	event string // type
	data  any
}

// viewOf returns the view after events that no command has decided.
func viewOf(t *testing.T, events []recorded) *projections.View {
	t.Helper()
	world := projections.NewWorld()
	for i, e := range events {
		data, err := json.Marshal(e.data)
		require.NoError(t, err)
		require.NoError(t, world.Apply(eventlog.Event{Record: domain.Record{Type: e.event, Data: data}, Name: e.on,
			Position: uint64(i) + 1, Time: noon}))
	}
	return world.View()
}
