package main_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
)

// The scripts in testdata/script are what users type, on one server. Besides
// testscript's own commands they have:
//
//	exits CODE PROGRAM ARGS…   the program ends with this exit code
//	[sandbox]                  this machine can run evaluators
//	[speech]                   this machine can transcribe speech; $SPEECH is a recording, $SPEECHMODEL a model's folder
//	object                     stdout is one object of JSON
//	field PATH VALUE           the JSON on stdout has this value at a dotted path
func TestCommandLine(t *testing.T) {
	s := serve(t, t.TempDir())
	examples, err := filepath.Abs(filepath.Join("..", "..", "examples"))
	require.NoError(t, err)
	recorded := ""
	if missingForSpeech() == "" {
		recorded = speech(t)
	}
	testscript.Run(t, testscript.Params{
		Dir: filepath.Join("testdata", "script"),
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", filepath.Dir(binary(t))+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", e.WorkDir)
			e.Setenv("DATA", s.dir)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("SPEECH", recorded)
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
	if items, ok := root.([]any); ok { // of a list, the first
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
