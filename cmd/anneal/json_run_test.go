package main_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestJSONOutput checks that a command writes one JSON value to stdout with -o json.
func TestJSONOutput(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	dir := t.TempDir()
	row := `{"input":{"messages":[{"role":"user","content":"q"}]},` +
		`"preferred_output":[{"role":"assistant","content":"a"}],` +
		`"non_preferred_output":[{"role":"assistant","content":"b"}]}` + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rows.jsonl"), []byte(strings.Repeat(row, 4)), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "anneal.yaml"), []byte("listen: 127.0.0.1:0\n"), 0o600))
	for _, args := range listExamples() {
		s.run(args...).ok(t)
	}
	run := func(lines []string) {
		for _, line := range lines {
			if strings.HasPrefix(line, "deployment undelete d") {
				s.user().until("/deployments/d", "state", "DELETED") // its replica has ended
			}
			cmd := exec.Command(binary(t), append(strings.Fields(line), "-o", "json")...)
			cmd.Dir, cmd.Env = dir, environment(dir, "ANNEAL_CONTEXT="+filepath.Join(s.dir, "context.json"))
			var output strings.Builder
			cmd.Stderr = &output
			out, err := cmd.Output()
			require.NoError(t, err, "anneal %s\n%s", line, &output)
			require.True(t, json.Valid(out), "anneal %s wrote\n%s", line, out)
		}
	}
	run(jsonCommands)
	require.Zero(t, s.end())
	copyWithoutLog(t, s.dir, filepath.Join(dir, "clustered"))
	run(stopped)
}
