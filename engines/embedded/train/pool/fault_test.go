package pool

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/enginetest"
)

func requirePanicked(t *testing.T, err error) {
	t.Helper()
	var f *domain.Error
	require.True(t, errors.As(err, &f), "%v", err)
	require.Equal(t, domain.Internal, f.Code)
	require.Equal(t, engines.EnginePanicked, f.Reason)
}

func stateOf(t *testing.T, r *run) string {
	var state strings.Builder
	require.NoError(t, r.Save(t.Context(), &state))
	return state.String()
}

// callOf returns a call that has been validated.
func callOf(t *testing.T, r *run, pass engines.TrainPass, backward bool) *call {
	c := &call{run: r, pass: &pass, backward: backward}
	var err error
	c.loss, err = lossOf(&pass)
	require.NoError(t, err)
	return c
}

// TestPlantedFaults plants a fault in one of three calls that are computed in one pass. The call at
// fault fails, with its run if it adds to a gradient, and the others have the results that they
// have alone.
func TestPlantedFaults(t *testing.T) {
	value := func(target) (float64, float64) { panic("planted") }
	for name, fault := range map[string]func(r *run, c *call){
		"loss": func(_ *run, c *call) { c.loss.value = value },
		// the gradients of the other runs have parts of the pass when the backward pass fails
		"gradient": func(r *run, _ *call) {
			config := r.pool.net.Weights.Config
			config.KVHeads = 1
			r.gradient = r.adapter.NewGradient(&config)
		},
		"order": func(r *run, _ *call) { r.order = llama.NewOrder(&llama.Config{Layers: 1}) },
	} {
		for at := range 3 {
			for _, backward := range []bool{true, false} {
				if !backward && name != "loss" {
					continue
				}
				t.Run(name, func(t *testing.T) { plant(t, at, backward, fault) })
			}
		}
	}
}

func plant(t *testing.T, at int, backward bool, fault func(r *run, c *call)) {
	passes := make([]engines.TrainPass, 3)
	for i := range passes {
		passes[i] = enginetest.RandomPass(rand.New(rand.NewPCG(uint64(i), 6)), engines.LossCrossEntropy, 1, vocab)
	}
	p, alone := idlePool(t, 1), openTest(t, 1)
	defer p.Close()
	var runs []*run
	var calls []*call
	for i, pass := range passes {
		r := create(t, p, 3+i)
		r.randomize(4, 0.1)
		c := callOf(t, r, pass, backward)
		if i == at {
			fault(r, c)
		}
		require.NoError(t, p.add(t.Context(), c))
		runs, calls = append(runs, r), append(calls, c)
	}
	p.start()
	for i, c := range calls {
		<-c.done
		err := p.errOf(c)
		if i == at {
			requirePanicked(t, err)
			if _, err = runs[i].Forward(t.Context(), passes[i]); !backward {
				require.NoError(t, err, "the run continues")
				continue
			}
			requirePanicked(t, err)
			_, err = runs[i].Step(t.Context(), engines.DefaultAdamParams())
			requirePanicked(t, err)
			requirePanicked(t, runs[i].Save(t.Context(), &strings.Builder{}))
			requirePanicked(t, runs[i].Export(t.Context(), t.TempDir()))
			continue
		}
		require.NoError(t, err)
		want := create(t, alone, 3+i)
		want.randomize(4, 0.1)
		compute := want.Forward
		if backward {
			compute = want.ForwardBackward
		}
		got, err := compute(t.Context(), passes[i])
		require.NoError(t, err)
		require.Equal(t, got.Outputs, c.outputs)
		runs[i].accumulated = backward
		require.Equal(t, stateOf(t, want), stateOf(t, runs[i]), "run %d", i)
	}
	for _, r := range runs {
		require.NoError(t, r.Close())
	}
	require.Zero(t, p.tokens)
}

// TestFaultOfLongCall checks that a call with many passes ends after a panic in one of them, and
// that other runs go on.
func TestFaultOfLongCall(t *testing.T) {
	p := openTest(t, 3)
	pass := enginetest.RandomPass(rand.New(rand.NewPCG(1, 6)), engines.LossCrossEntropy, 200, vocab)
	bad, good := create(t, p, 2), create(t, p, 2)
	c, n := callOf(t, bad, pass, true), 0
	valid := c.loss.value
	c.loss.value = func(one target) (float64, float64) {
		p.mu.Lock()
		n++
		late := n > 1000
		p.mu.Unlock()
		if late {
			panic("planted")
		}
		return valid(one)
	}
	done := make(chan error)
	go func() {
		_, err := good.ForwardBackward(t.Context(), pass)
		done <- err
	}()
	requirePanicked(t, p.do(t.Context(), c))
	require.NoError(t, <-done)
	want := create(t, openTest(t, 1), 2)
	_, err := want.ForwardBackward(t.Context(), pass)
	require.NoError(t, err)
	require.Equal(t, stateOf(t, want), stateOf(t, good))
}

// TestFaultOfStep plants a fault in a goroutine of the optimizer.
func TestFaultOfStep(t *testing.T) {
	p := openTest(t, 3)
	r := create(t, p, 2)
	for range 9 {
		r.optimizer.ranges = append(r.optimizer.ranges, decayRange{lo: 0, hi: 1 << 30})
	}
	_, err := r.Step(t.Context(), engines.DefaultAdamParams())
	requirePanicked(t, err)
	_, err = r.Forward(t.Context(), engines.TrainPass{})
	requirePanicked(t, err)
	_, err = create(t, p, 2).Step(t.Context(), engines.DefaultAdamParams())
	require.NoError(t, err)
}

// TestFaultOfQueue plants a fault in the queue itself: calls fail, and later ones, too.
func TestFaultOfQueue(t *testing.T) {
	p := idlePool(t, 2)
	good := create(t, p, 2)
	pass := enginetest.RandomPass(rand.New(rand.NewPCG(1, 6)), engines.LossCrossEntropy, 2, vocab)
	c := callOf(t, good, pass, true)
	require.NoError(t, p.add(t.Context(), c))
	p.calls[0].account = nil
	p.start()
	<-p.broken
	require.Equal(t, domain.Unavailable, domain.CodeOf(p.errOf(c)))
	_, err := good.Forward(t.Context(), pass)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Contains(t, err.Error(), "fair.go")
	_, err = good.Step(t.Context(), engines.DefaultAdamParams())
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.NoError(t, p.Close())
}

// TestGoroutines checks that each goroutine that a pool starts is one of those that tests plant
// faults in: a panic on any other would end the process, with the runs of all accounts.
func TestGoroutines(t *testing.T) {
	planted := map[string]string{
		"train/pool/pool.go start":      "TestPlantedFaults, TestFaultOfQueue",
		"kernel/split.go Each":          "kernel.TestEachPanics, TestFaultOfStep",
		"serve/samples.go NewSamples":   "serve.TestSampleFaults, serve.TestFaultOfScheduler",
		"serve/serve.go Load":           "serve.TestPanicInAStep: the scheduler of a deployment",
		"serve/start.go Start":          "serve.TestPanicInAStep: the scheduler of a deployment",
		"serve/variants.go LoadWeights": "serve.TestPanicInAStep: the scheduler of a deployment",
		"serve/addons.go UnloadAddon":   "waits and closes only",
	}
	root, found := filepath.Join("..", ".."), map[string]bool{}
	for _, dir := range []string{"train/pool", "kernel", "llama", "serve", "fair", "safetensors", "tokenizer", "chat",
		"grammar"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "/gen/") {
				return err
			}
			name, _ := filepath.Rel(root, path)
			for _, in := range goroutines(t, path) {
				found[name+" "+in] = true
			}
			return nil
		}))
	}
	for where := range found {
		require.Contains(t, planted, where, "plant a fault in this goroutine")
	}
	require.Len(t, found, len(planted))
	tests := map[string]bool{}
	for _, dir := range []string{"train/pool", "kernel", "serve"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "*_test.go"))
		require.NoError(t, err)
		for _, path := range files {
			source, err := os.ReadFile(path)
			require.NoError(t, err)
			for _, name := range testName.FindAllString(string(source), -1) {
				tests[strings.TrimPrefix(name, "func ")] = true
			}
		}
	}
	for where, by := range planted {
		for _, name := range regexp.MustCompile(`Test\w+`).FindAllString(by, -1) {
			require.True(t, tests[name], "%s: there is no %s", where, name)
		}
	}
}

var testName = regexp.MustCompile(`func Test\w+`)

// goroutines returns the functions of a file that start goroutines.
func goroutines(t *testing.T, path string) (names []string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	require.NoError(t, err)
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.GoStmt:
				names = append(names, f.Name.Name)
			case *ast.SelectorExpr:
				if n.Sel.Name == "Go" || n.Sel.Name == "AfterFunc" {
					names = append(names, f.Name.Name)
				}
			}
			return true
		})
	}
	return names
}
