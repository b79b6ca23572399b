package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/miniature"
	"anneal/engines/sandbox"
	"anneal/internal/hub/hubtest"
)

// TestCommandLine runs the scripts in testdata/script, which execute commands of users on one
// server. $HUB is the address of a hub with the model org/tiny, which requires the token hub-token.
// $TINY is the directory of a small model, and $ADAPTER that of an adapter for it.
// The scripts can use these commands and conditions in addition to testscript's own:
//
//	exits CODE PROGRAM ARGS…   the program ends with this exit code
//	[sandbox]                  this machine can run evaluators
//	[speech]                   this machine can transcribe speech; $SPEECH is a recording, and
//	                           $SPEECHMODEL the directory of a speech model
//	object                     stdout is one object of JSON
//	field PATH VALUE           the JSON on stdout has this value at a dotted path
func TestCommandLine(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	require.NoError(t, err)
	recorded := ""
	if missingForSpeech() == "" {
		recorded = speech(t)
	}
	models := &hubtest.Server{TB: t, Dir: t.TempDir(), Token: "hub-token"}
	require.NoError(t, os.MkdirAll(filepath.Join(models.Dir, "org", "tiny"), 0o755))
	require.NoError(t, miniature.Write(filepath.Join(models.Dir, "org", "tiny"), "llama3"))
	models.Cut = 1000
	tiny, adapter := t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(tiny, "qwen3"))
	writeAdapter(t, tiny, adapter)
	server := httptest.NewServer(models)
	t.Cleanup(server.Close) // after the scripts, which run in parallel
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(binary(t))+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("DATA", s.dir)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("SPEECH", recorded)
			e.Setenv("HUB", server.URL)
			e.Setenv("TINY", tiny)
			e.Setenv("ADAPTER", adapter)
			e.Setenv("SPEECHMODEL", "/usr/share/pocketsphinx/model/en-us")
			e.Setenv("ANNEAL_CONTEXT", filepath.Join(s.dir, "context.json"))
			return nil
		},
		Condition: func(condition string) (bool, error) {
			if condition == "speech" {
				return recorded != "", nil
			}
			if condition != "sandbox" {
				return false, fmt.Errorf("unknown condition")
			}
			err := sandbox.New(sandbox.Options{}).Check(t.Context())
			if err != nil {
				t.Log(err)
			}
			return err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "field": field, "object": holdsObject},
	})
}

// writeAdapter writes an adapter of two projections of a model, with random weights.
func writeAdapter(t *testing.T, base, dir string) {
	w, err := llama.Load(base)
	require.NoError(t, err)
	a, source := llama.NewAdapter(w.Config, 4, 8, []llama.Module{llama.Query, llama.Down}), rand.New(rand.NewPCG(1, 2))
	for i := range a.Flat() {
		a.Flat()[i] = float32(source.NormFloat64() * 0.1)
	}
	a.BaseHash = w.Hash()
	require.NoError(t, a.Save(dir, 0))
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS…")
	}
	code := 0
	err := ts.Exec(args[1], args[2:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		code = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(code) != args[0] {
		ts.Fatalf("exit code %d, not %s\n%s", code, args[0], ts.ReadFile("stderr"))
	}
}

func holdsObject(ts *testscript.TestScript, neg bool, args []string) {
	var answer object
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &answer); err != nil || neg || len(args) > 0 {
		ts.Fatalf("usage: object, where stdout is one: %v", err)
	}
}

func field(ts *testscript.TestScript, neg bool, args []string) {
	if len(args) != 2 {
		ts.Fatalf("usage: field PATH VALUE")
	}
	var root any
	if err := json.Unmarshal([]byte(ts.ReadFile("stdout")), &root); err != nil {
		ts.Fatalf("stdout is not JSON: %v", err)
	}
	if items, ok := root.([]any); ok { // the first item of a list
		if len(items) == 0 {
			ts.Fatalf("the list is empty")
		}
		root = items[0]
	}
	var want any = args[1]
	if json.Unmarshal([]byte(args[1]), &want) != nil {
		want = args[1]
	}
	object, _ := root.(map[string]any)
	got := at(object, args[0])
	if text, ok := got.(string); ok && text == args[1] { // a count is a decimal string
		want = got
	}
	if reflect.DeepEqual(got, want) == neg {
		ts.Fatalf("%s is %v", args[0], got)
	}
}
