package anneal_test

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// startsPrograms maps each file that may start a program to the reason. All other code starts
// programs with a sandbox.Runner, which confines them.
var startsPrograms = map[string]string{
	"engines/process/process.go": "process.Start starts what sandbox.Runner has confined",
	"engines/sandbox/runner.go":  "Runner makes the sandbox around every program of an engine",
	"engines/sandbox/relay.go":   "it runs inside a sandbox and starts the program there",
	"engines/sandbox/sandbox.go": "it tries an evaluator's sandbox with a program that does nothing",
	"engines/sandbox/worker.go":  "it starts an evaluator's worker in its sandbox",
	"engines/torch/torch.go":     "it asks Python what is installed, before there is any file of a tenant",
	"workers/agent/driver.go":    "nvidia-smi reads the state of devices, and gets no file",
	"workers/agent/machine.go":   "nvidia-smi lists devices, and gets no file",
	"api/described/prism.go":     "tests start prism, and the program does not contain the package",
	"internal/cli/demo.go":       "sh runs the demo's script, which is part of the program, on the user's own machine",
}

// starters maps packages to their functions that start programs.
var starters = map[string][]string{
	"exec":    {"Command", "CommandContext"},
	"os":      {"StartProcess"},
	"syscall": {"Exec", "ForkExec", "StartProcess"},
	"unix":    {"Exec"},
	"process": {"Start"},
}

// TestProgramsAreConfined checks that only the files in startsPrograms call the functions in
// starters.
func TestProgramsAreConfined(t *testing.T) {
	found := map[string]bool{}
	eachFile(t, func(path string, file *ast.File, set *token.FileSet) {
		if strings.HasSuffix(path, "_test.go") {
			return
		}
		path = filepath.ToSlash(path)
		ast.Inspect(file, func(n ast.Node) bool {
			selector, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			from, ok := selector.X.(*ast.Ident)
			if !ok || !slices.Contains(starters[from.Name], selector.Sel.Name) {
				return true
			}
			found[path] = true
			if startsPrograms[path] == "" {
				t.Errorf("%s: %s.%s: have sandbox.Runner start it, or say here why it needs no sandbox", set.Position(n.Pos()),
					from.Name, selector.Sel.Name)
			}
			if from.Name == "process" && path != "engines/sandbox/runner.go" {
				t.Errorf("%s: process.Start: only sandbox.Runner may", set.Position(n.Pos()))
			}
			return true
		})
	})
	for path := range startsPrograms {
		if !found[path] {
			t.Errorf("%s starts no program: take it off the list", path)
		}
	}
}
