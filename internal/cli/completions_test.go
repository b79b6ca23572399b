package cli

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// completed returns the words that complete a command line, whose last word may be empty.
func completed(t *testing.T, handler http.HandlerFunc, args ...string) []string {
	t.Helper()
	t.Setenv(contextVariable, contextFileOf(t, handler)) // a flag would be the word to complete
	var out, output bytes.Buffer
	c := NewRoot("test")
	c.SetOut(&out)
	c.SetErr(&output)
	c.SetArgs(append([]string{cobra.ShellCompNoDescRequestCmd}, args...))
	require.NoError(t, c.Execute(), args)
	require.NotContains(t, output.String(), "warning")
	words := strings.Split(strings.TrimSpace(out.String()), "\n")
	return words[:len(words)-1] // the last line is a directive
}

// TestCompletions checks the words that complete arguments and flags.
func TestCompletions(t *testing.T) {
	paths := map[string]string{
		"/v1/accounts/a/datasets": `{"datasets":[{"name":"accounts/a/datasets/d1","state":"READY"},` +
			`{"name":"accounts/a/datasets/d2"}]}`,
		"/v1/accounts/a/supervisedFineTuningJobs": `{"supervisedFineTuningJobs":[{"name":"accounts/a/` +
			`supervisedFineTuningJobs/j1","state":"JOB_STATE_RUNNING"}]}`,
		"/v1/accounts/a/supervisedFineTuningJobs/j1/checkpoints": `{"checkpoints":[{"name":"x/checkpoints/1-20","step":20}]}`,
		"/inference/v1/models": `{"data":[{"id":"accounts/a/models/m","deployed":true},{"id":"accounts/b/models/n"},` +
			`{"id":"speech-v3"}]}`,
		"/v1/accounts":                    `{"accounts":[{"name":"accounts/acme"}]}`,
		"/v1/accounts/a/nodes":            `{"nodes":[{"name":"accounts/system/nodes/local"}]}`,
		"/v1/accounts/a/apiKeys":          `{"apiKeys":[{"name":"accounts/a/apiKeys/k"}]}`,
		"/v1/accounts/a/deployedModels":   `{"deployedModels":[{"name":"accounts/a/deployedModels/x"}]}`,
		"/v1/accounts/a/deploymentShapes": `{"deploymentShapes":[{"name":"accounts/a/deploymentShapes/s"}]}`,
	}
	server := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Anneal-Warning", "must not appear")
		if strings.HasPrefix(r.URL.Path, "/inference") && r.URL.RawQuery != "" {
			w.WriteHeader(http.StatusBadRequest) // as the server does
			return
		}
		_, _ = io.WriteString(w, paths[r.URL.Path])
	}
	for line, words := range map[string]string{
		"dataset get ":                            "d1 d2",
		"dataset get accounts/":                   "accounts/a/datasets/d1 accounts/a/datasets/d2",
		"dataset create ":                         "",
		"dataset derive new --from ":              "d1 d2",
		"dataset get d1 ":                         "",
		"sft create j --dataset ":                 "d1 d2",
		"sft watch ":                              "j1",
		"sft promote j1 ":                         "1-20",
		"sft promote j1 1-20 ":                    "",
		"chat --model ":                           "m accounts/b/models/n speech-v3",
		"chat --model accounts/":                  "accounts/a/models/m accounts/b/models/n speech-v3",
		"account get ":                            "acme",
		"node get ":                               "local",
		"key delete ":                             "k",
		"events credentials revoke ":              "k",
		"addon unload ":                           "x",
		"shape versions ":                         "s",
		"quota set acme ":                         strings.Join(domain.QuotaIDs, " "),
		"dataset list -o ":                        "table json",
		"key create --role ":                      "admin user inference reader",
		"dataset create d --format ":              "CHAT COMPLETION RL",
		"account suspend x --reason ":             strings.Join(domain.SuspendStates, " "),
		"model prepare m --precision ":            "BF16 FP16 FP8",
		"transcribe --format ":                    "text srt vtt json verbose_json",
		"transcribe --preprocessing ":             "none dynamic soft_dynamic bass_dynamic",
		"serve --engine ":                         "embedded vllm llama.cpp openai",
		"work --pool ":                            "training inference",
		"deployment create d --accelerator-type ": strings.Join(domain.ShapeAcceleratorTypes[1:], " "),
		"sft create --display-name ":              "",
		"whoa":                                    "whoami",
	} {
		args := strings.Split(line, " ")
		require.ElementsMatch(t, strings.Fields(words), completed(t, server, args...), line)
	}
	broken := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }
	require.Empty(t, completed(t, broken, "dataset", "get", ""))
}

// TestEveryNameIsCompleted checks that every argument of a command and every flag has a completion,
// and that the arguments and flags that name resources are not completed with files.
func TestEveryNameIsCompleted(t *testing.T) {
	named := 0
	for _, c := range leaves(NewRoot("test")) {
		if c.Name() == "help" || c.Parent().Name() == "completion" {
			continue
		}
		require.NotNil(t, c.ValidArgsFunction, c.CommandPath())
		for i, name := range argumentNames(c) {
			if name != "ID" {
				continue
			}
			_, found := collectionNamedBy(c)
			known := found || c.Parent().Name() == "credentials"
			require.True(t, known, "%s: argument %d names a resource of no collection", c.CommandPath(), i)
			named++
		}
		c.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if f.Name == "help" {
				return
			}
			_, found := c.GetFlagCompletionFunc(f.Name)
			require.True(t, found, "%s --%s", c.CommandPath(), f.Name)
		})
	}
	require.Greater(t, named, 60)
}
