package cli

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// zeroFlags describes what 0 means in the numeric flags that accept it, or why it is refused elsewhere.
var zeroFlags = map[string]string{
	"accelerator-share": "whole devices", "lora-rank": "trains all parameters",
	"learning-rate": "documented", "batch-size": "documented",
	"batch-size-samples": "documented", "min-replicas": "scales to zero", "max-replicas": "no replicas",
	"temperature": "greedy", "top-k": "documented", "top-p": "the filter is off", "seed": "a seed",
	"max-tokens": "no tokens", "show": "no rows", "limit": "documented", "samples": "refused, with the limits",
	"min-score": "a score", "max-score": "a score", "keep": "keeps by age only", "keep-days": "keeps by number only",
	"max-error-increase": "no higher error rate", "max-staleness": "the newest weights", "replay-weight": "documented",
	"expire": "refused", "deadline": "at once", "overlap": "the old secret is invalid at once",
	"scale-up-window": "at once", "scale-down-window": "at once", "scale-to-zero-window": "refused by its minimum",
}

// refusedValues are values that a flag of aboveZero refuses, by the type of the flag.
var refusedValues = map[string][]string{"int": {"0", "-1"}, "int64": {"0", "-1"}, "uint64": {"0"},
	"float64": {"0", "-0.5"}, "duration": {"0", "-1m0s"}}

// TestZeroInNumericFlags checks for every numeric flag of every command of users that 0 either has a
// meaning, or is refused like a negative number, with the default, before a request is sent.
func TestZeroInNumericFlags(t *testing.T) {
	numeric := []string{"int", "int64", "uint64", "float64", "duration"}
	ofServers := []string{"serve", "work", "doctor", "support-bundle"} // the server checks its flags itself
	refused := 0
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			walk(below)
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if !slices.Contains(numeric, f.Value.Type()) || slices.Contains(ofServers, c.Name()) {
				return
			}
			if meaning := zeroFlags[f.Name]; meaning != "" {
				require.NotContains(t, aboveZero, f.Name)
				return
			}
			require.Contains(t, aboveZero, f.Name, "%s --%s: add it to aboveZero or to zeroFlags", c.CommandPath(), f.Name)
			line := strings.Fields(strings.TrimPrefix(c.CommandPath(), "anneal "))
			for range strings.Count(strings.SplitN(c.Use+" [", "[", 2)[0], " ") {
				line = append(line, "x")
			}
			for _, value := range refusedValues[f.Value.Type()] {
				root := NewRoot("test")
				root.SetOut(io.Discard)
				root.SetErr(io.Discard)
				root.SetArgs(append([]string{line[0]}, append(slices.Clone(line[1:]), "--"+f.Name, value)...))
				found, _, err := root.Find(line)
				require.NoError(t, err)
				found.Args = nil // only the flag is wrong
				err = root.Execute()
				require.ErrorContains(t, err, "--"+f.Name+" must be above 0, not "+value+
					"; leave the flag out for the default", c.CommandPath())
			}
			refused++
		})
	}
	walk(NewRoot("test"))
	require.Greater(t, refused, 15)
}

// TestZeroEpochs checks the whole message, and that the windows of scaling may be 0.
func TestZeroEpochs(t *testing.T) {
	sent := ""
	server := func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		sent = string(data)
		_, _ = io.WriteString(w, "{}")
	}
	_, err := runAgainst(t, server, "sft", "create", "--dataset", "d", "--epochs", "0")
	require.EqualError(t, err, "--epochs must be above 0, not 0; leave the flag out for the default, 1")
	_, err = runAgainst(t, server, "sft", "create", "--dataset", "d", "--epochs", "-1")
	require.EqualError(t, err, "--epochs must be above 0, not -1; leave the flag out for the default, 1")
	_, err = runAgainst(t, server, "eval", "-m", "m", "--dataset", "d", "--max", "0")
	require.EqualError(t, err, "--max must be above 0, not 0; leave the flag out for the default: all")
	require.Empty(t, sent, "no request is sent")
	_, err = runAgainst(t, server, "deployment", "update", "d", "--scale-up-window", "0s")
	require.NoError(t, err)
	require.Contains(t, sent, `"scaleUpWindow":"0s"`)
}
