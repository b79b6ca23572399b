package replay

import (
	"context"
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const h100 = "VENDOR_A_H100_80GB"

// A trace generates a log: users and agents are simulated, and the real schedulers decide.
type trace struct {
	t       testing.TB
	world   *projections.World
	events  []eventlog.Event
	inputs  []input
	running map[domain.Name]*workload
	random  *rand.Rand
	intents map[string]domain.Intent // of inputs, by time and name
}

// A list is a log in memory with given events.
type list []eventlog.Event

func (l list) Read(ctx context.Context, _ string, after uint64) iter.Seq2[eventlog.Event, error] {
	return func(yield func(eventlog.Event, error) bool) {
		for _, e := range l[min(after, uint64(len(l))):] {
			if !yield(e, ctx.Err()) {
				return
			}
		}
	}
}

func newTrace(t testing.TB, nodes int) *trace {
	tr := &trace{t: t, world: projections.NewWorld(), running: map[domain.Name]*workload{},
		intents: map[string]domain.Intent{}, random: rand.New(rand.NewPCG(1, 2))}
	for _, account := range []string{"acme", "beta", "gamma", "delta"} {
		tr.do(domain.Intend(domain.Accounts, domain.NewName("", "accounts", account),
			domain.Command[domain.Account](domain.CreateAccount{})))
		for i, billions := range []int64{7, 40, 70, 180} {
			tr.do(domain.Intend(domain.Models, domain.NewName(account, "models", fmt.Sprintf("m%d", i)),
				domain.Command[domain.Model](domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel},
					Files:         domain.Files{Prefix: fmt.Sprintf("models/%s/m%d/", account, i)},
					ModelMetadata: domain.ModelMetadata{ParameterCount: domain.Count(billions * 1e9)}})))
		}
		rows := domain.NewName(account, "datasets", "rows")
		for _, cmd := range []domain.Command[domain.Dataset]{domain.CreateDataset{},
			domain.UploadDataset{Upload: 1, Files: domain.Files{Prefix: "rows/1/", Sizes: map[string]int64{"rows.jsonl": 9}}},
			domain.AcceptDataset{Upload: 1, DatasetStats: domain.DatasetStats{Shape: domain.ShapeChat, ExampleCount: 9}}} {
			tr.do(domain.Intend(domain.Datasets, rows, cmd))
		}
	}
	for i := range nodes {
		tr.do(domain.Intend(domain.Nodes, nodeName(i), domain.Command[domain.Node](domain.RegisterNode{
			NodeSpec: spec()})))
	}
	return tr
}

func nodeName(i int) domain.Name {
	return domain.NewName(domain.System, "nodes", fmt.Sprintf("n%02d", i))
}

func spec() domain.NodeSpec {
	return domain.NodeSpec{Engines: []string{"train", "train:dpo", "complete", domain.GangAbility},
		Capacity: domain.Resources{CPUMilli: 64_000, MemoryMiB: 512_000, Accelerators: map[string]int{h100: 8}}}
}

// do records an intent before the period.
func (tr *trace) do(intent domain.Intent) {
	record, err := intent.Decide(tr.world.Lookup(intent.Name).State, noon.Add(-time.Hour))
	require.NoError(tr.t, err)
	e := eventlog.Event{Record: record, Position: tr.world.Position() + 1, Name: intent.Name, Time: noon.Add(-time.Hour),
		Actor: "user"}
	e.ID = fmt.Sprintf("e%d", e.Position)
	require.NoError(tr.t, tr.world.Apply(e))
	tr.events = append(tr.events, e)
}

// at adds an input.
func (tr *trace) at(at time.Time, intent domain.Intent, w *workload) {
	tr.intents[at.String()+string(intent.Name)] = intent
	in := input{at: at, event: eventlog.Event{Name: intent.Name}, creates: w != nil, work: w}
	if w == nil {
		in.intent = &intent
		tr.inputs = append(tr.inputs, in)
		return
	}
	record, err := intent.Decide(nil, at)
	require.NoError(tr.t, err)
	in.event.Record = record
	tr.inputs = append(tr.inputs, in)
}

// job adds a job.
func (tr *trace) job(at time.Time, account, id string, model, nodes int, work time.Duration) domain.Name {
	name := domain.NewName(account, domain.SupervisedJobs.Collection, id)
	w := newWorkload(name)
	w.segments[0] = &segment{work: work, end: completes}
	w.saves = 10 * time.Minute
	tr.at(at, domain.Intend(domain.SupervisedJobs, name, domain.Command[domain.SupervisedJob](
		domain.CreateSupervisedJob{ID: id, SupervisedSpec: domain.SupervisedSpec{
			Dataset: string(domain.NewName(account, "datasets", "rows")), Nodes: nodes,
			TrainingConfig: domain.TrainingConfig{BaseModel: string(domain.NewName(account, "models",
				fmt.Sprintf("m%d", model)))}}})), w)
	return name
}

// day adds n jobs that arrive over a day. load is their work as a part of the capacity of the
// nodes.
func (tr *trace) day(n, nodes int, load float64) { tr.period(24*time.Hour, n, nodes, load) }

func (tr *trace) period(length time.Duration, n, nodes int, load float64) {
	mean := load * float64(nodes) * 8 * length.Seconds() / float64(n) / 2.9 // seconds; a job has 2.9 devices on average
	for i := range n {
		at := noon.Add(time.Duration(float64(i) / float64(n) * float64(length))).Add(
			time.Duration(tr.random.IntN(1000)) * time.Microsecond)
		account := []string{"acme", "acme", "beta", "gamma", "delta"}[tr.random.IntN(5)]
		work := mean * math.Exp(tr.random.NormFloat64()*1.2-0.72)
		model, gang := []int{0, 0, 1, 1, 1, 2, 3}[tr.random.IntN(7)], 1
		if tr.random.IntN(50) == 0 {
			gang = 2
		}
		name := tr.job(at, account, fmt.Sprintf("j%05d", i), model, gang, time.Duration(work*float64(time.Second)))
		if tr.random.IntN(40) == 0 {
			tr.at(at.Add(time.Duration(tr.random.IntN(600))*time.Second), domain.IntendJob(name, domain.CancelJob{}), nil)
		}
	}
	sortInputs(tr.inputs)
}

// record runs the schedulers and returns the log.
func (tr *trace) record(length time.Duration) list {
	p := &period{from: noon, to: noon.Add(length), base: tr.world, inputs: tr.inputs, running: tr.running,
		stop: 5 * time.Second, ready: map[domain.Name]time.Duration{"": 20 * time.Second},
		specs: map[string]domain.NodeSpec{}, kinds: map[domain.Name]string{}}
	s := newSimulation(p, Settings{Name: "trace"}, time.Second)
	s.recorded = func(e eventlog.Event) { tr.events = append(tr.events, e) }
	_, err := s.run(tr.t.Context())
	require.NoError(tr.t, err)
	return tr.events
}
