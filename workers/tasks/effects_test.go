package tasks_test

import (
	"context"
	"fmt"
	"go/ast"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/internal/testutil"
	"anneal/workers/tasks"
)

// An effect is one test case: a task with effects outside of the log.
type effect struct {
	covers  []string // names of the methods of this package whose effects the case has
	prepare func(b *harness) eventlog.Event
	task    func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error
	holds   func(b *harness) bool // reports whether the work of the task is done
}

var effects = map[string]effect{
	"check rows": {prepare: func(b *harness) eventlog.Event {
		b.do("d", domain.CreateDataset{})
		stored := domain.Files{Prefix: "datasets/acme/e/1-x/",
			Sizes: map[string]int64{"rows.jsonl": int64(len(numbered(1, 9)))}}
		b.put(stored.Prefix+"rows.jsonl", strings.NewReader(numbered(1, 9)))
		return b.do("d", domain.UploadDataset{Upload: 1, Files: stored})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		return tasks.Validator{Log: log, World: b.world, Blobs: b.blobs, Now: time.Now}.Validate
	}, holds: func(b *harness) bool { return b.state("d").State == domain.DatasetReady }},
	"derive rows": {covers: []string{"make"}, prepare: func(b *harness) eventlog.Event {
		b.source("source", numbered(1, 9))
		return b.create("d", "source", domain.Derivation{Filter: "n > 2"})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		d := b.deriver
		d.Log = log
		return d.Derive
	}, holds: func(b *harness) bool { return b.state("d").State == domain.DatasetReady }},
	"leave rows unmade": {prepare: func(b *harness) eventlog.Event {
		b.source("source", numbered(1, 9))
		return b.create("d", "source", domain.Derivation{Filter: "n > 7"})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		d := b.deriver
		d.Log = log
		return d.Derive
	}, holds: func(b *harness) bool { return b.state("d").FillFailed() }},
	"import rows": {covers: []string{"store", "discard"}, prepare: func(b *harness) eventlog.Event {
		return b.do("d", domain.CreateDataset{
			DatasetSpec: domain.DatasetSpec{ExternalURL: publicStore(b).Address("a.jsonl")}})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		return tasks.Importer{Transferrer: b.transferrer(log)}.Import
	}, holds: func(b *harness) bool { return b.state("d").Upload == 1 }},
	"refuse to import rows": {prepare: func(b *harness) eventlog.Event {
		return b.do("d", domain.CreateDataset{
			DatasetSpec: domain.DatasetSpec{ExternalURL: publicStore(b).Address("b.jsonl")}})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		return tasks.Importer{Transferrer: b.transferrer(log)}.Import
	}, holds: func(b *harness) bool { return b.state("d").Import.State == domain.TransferFailed }},
	"copy a model": {covers: []string{"write", "convert", "put"}, prepare: func(b *harness) eventlog.Event {
		b.ready("m", whole, shipped(b.TB.(*testing.T)))
		return b.model("m", domain.PrepareModel{Precision: "FP16"})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		c := b.copier()
		c.Log = log
		return c.Copy
	}, holds: func(b *harness) bool { return b.modelState("m").Copies["FP16"].State == domain.CopyReady }},
	"build code": {covers: []string{"store", "recordResult"}, prepare: func(b *harness) eventlog.Event {
		b.evaluator("e", domain.CreateEvaluator{})
		return b.uploadCode("e", 1, map[string]string{"main.py": "def evaluate(): ...\n", "more.py": "x = 1\n"})
	}, task: func(b *harness, log eventlog.Log) func(context.Context, eventlog.Event) error {
		builder := b.builder(&reader{})
		builder.Log = log
		return builder.Build
	}, holds: func(b *harness) bool {
		return stateOf(b, domain.Evaluators, "e").State == domain.EvaluatorActive
	}},
}

// TestFaultsAtEveryEffect injects a fault at each effect of a task, then restarts and reconciles.
// It checks that the world and the files then agree, and that the redelivered task has the result
// that it would have had without the fault.
func TestFaultsAtEveryEffect(t *testing.T) {
	for name, e := range effects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			steps := e.run(t, faults.NewPlan("", 0))
			require.NotEmpty(t, steps)
			for _, mode := range faults.Modes {
				for at := range len(steps) {
					t.Run(fmt.Sprintf("%s: %s", mode, steps[at]),
						func(t *testing.T) { e.run(t, faults.NewPlan(mode, at+1)) })
				}
			}
		})
	}
}

func (e effect) run(t *testing.T, plan *faults.Plan) []string {
	b := newHarness(t)
	event := e.prepare(b)
	b.plan.Store(plan)
	err := e.task(b, plan.Log(b.log))(t.Context(), event)
	b.plan.Store(nil)
	vault := secrets.NewMemoryVault()
	agree := func() {
		t.Helper()
		world, err := faults.Restart(t.Context(), b.log, b.blobs, vault)
		require.NoError(t, err)
		require.NoError(t, faults.Agree(t.Context(), world.View(), b.blobs, vault))
	}
	agree()
	if err == nil { // after a success, the event is not delivered again
		require.True(t, e.holds(b), "the task is done but its result is missing")
		return plan.Steps()
	}
	last := b.last()
	require.NoError(t, b.world.WaitFor(t.Context(), last.Position))
	require.NoError(t, e.task(b, b.log)(t.Context(), event))
	require.True(t, e.holds(b), "the task cannot be repeated")
	agree()
	return plan.Steps()
}

// TestEveryEffectIsTested checks that effects covers every method that changes the blob store.
func TestEveryEffectIsTested(t *testing.T) {
	covered := map[string]bool{}
	for _, e := range effects {
		for _, f := range e.covers {
			covered[f] = true
		}
	}
	found := 0
	testutil.InspectFiles(t, func(_ string, f *ast.FuncDecl) {
		testutil.Inspect(f, func(call *ast.CallExpr) {
			selected, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || !slices.Contains([]string{"Put", "Copy", "Delete", "DeletePrefix"}, selected.Sel.Name) {
				return
			}
			if owner, ok := selected.X.(*ast.SelectorExpr); ok && owner.Sel.Name == "Blobs" {
				found++
				require.True(t, covered[f.Name.Name], "%s calls %s and is in no effect of the table",
					f.Name.Name, selected.Sel.Name)
			}
		})
	}, "*.go")
	require.Greater(t, found, 4)
}
