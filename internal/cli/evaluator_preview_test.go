package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// promptFile writes a file with n rows, the last of which is the text last unless that is "".
func promptFile(t *testing.T, n int, last string) string {
	t.Helper()
	var lines strings.Builder
	for i := range n {
		if i == n-1 && last != "" {
			lines.WriteString(last)
			break
		}
		fmt.Fprintf(&lines, `{"messages":[{"role":"user","content":"%d"}],"ground_truth":"x"}`+"\n", i+1)
	}
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(lines.String()), 0o600))
	return path
}

// TestPreviewSamplesResponses checks that the model responds several times to each row, with the
// temperature of rollouts, that the responses are scored in batches in the order of the rows, and
// that the rows with different scores are counted.
func TestPreviewSamplesResponses(t *testing.T) {
	var sent atomic.Int64
	var batches []int
	server := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":previewEvaluator"):
			var body struct {
				Evaluator  map[string]any
				SampleData []map[string]any
			}
			_ = json.NewDecoder(r.Body).Decode(&body)
			batches = append(batches, len(body.SampleData))
			var results []any
			for i, row := range body.SampleData {
				messages := row["messages"].([]any)
				prompt := messages[0].(map[string]any)["content"]
				require.Equal(t, "to "+prompt.(string), lastContent(messages))
				require.Equal(t, "x", row["ground_truth"])
				score := 0.5
				if prompt == "3" && i%2 == 0 {
					score = 1
				}
				results = append(results, map[string]any{"score": score, "success": true, "reason": prompt})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
		case r.URL.Path == "/inference/v1/chat/completions":
			sent.Add(1)
			var body struct {
				Messages    []any
				Temperature float64
				MaxTokens   int `json:"max_tokens"`
			}
			_ = json.NewDecoder(r.Body).Decode(&body)
			require.Equal(t, 0.7, body.Temperature)
			require.Equal(t, 9, body.MaxTokens)
			fmt.Fprintf(w, `{"choices":[{"message":{"content":"to %s"}}]}`, lastContent(body.Messages))
		default:
			t.Errorf("unexpected request of %s", r.URL.Path)
		}
	}
	out, output, err := runOutput(t, server, "evaluator", "preview", "e", "--file", promptFile(t, 13, ""), "--model",
		"a/b",
		"--samples", "2", "--max-tokens", "9", "-o", "json")
	require.NoError(t, err)
	require.EqualValues(t, 26, sent.Load())
	require.Equal(t, []int{10, 10, 6}, batches)
	require.Equal(t, "1 of 13 rows have responses with different scores\n", output)
	var results []map[string]any
	require.NoError(t, json.Unmarshal([]byte(out), &results))
	require.Len(t, results, 26)
	for i, result := range results {
		require.Equal(t, float64(i/2+1), result["row"])
		require.Equal(t, fmt.Sprint(i/2+1), result["reason"])
		require.Equal(t, fmt.Sprint("to ", i/2+1), result["response"])
	}
}

// TestPreviewErrors checks that errors name the row of the file, that nothing is scored after an
// error of the model, and that a model that is not deployed is named with what to do.
func TestPreviewErrors(t *testing.T) {
	var scored atomic.Int64
	status, model := http.StatusNotFound,
		`{"error":{"message":"accounts/a/models/m has no live deployment in accounts/a: `+
			`create one with POST /v1/accounts/a/deployments","code":"MODEL_NOT_DEPLOYED"}}`
	// Each run of the command has its own counter: a request that a run has cancelled may reach the
	// server after the run has returned.
	sent := new(atomic.Int64)
	serve := func(sent *atomic.Int64, w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, ":previewEvaluator") {
			if scored.Add(1) == 2 {
				w.WriteHeader(http.StatusBadRequest)
				_, _ = io.WriteString(w, violations("sampleData[2]: must be a JSON object"))
				return
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"results": make([]map[string]any, 10)})
			return
		}
		sent.Add(1)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, model)
	}
	preview := func(args ...string) (string, error) {
		counter := new(atomic.Int64)
		sent = counter
		server := func(w http.ResponseWriter, r *http.Request) { serve(counter, w, r) }
		c, err := execute(t, io.Discard, io.Discard, server, append([]string{"evaluator", "preview", "e"}, args...)...)
		if err == nil {
			return "", nil
		}
		return describe(c, err), err
	}
	shown, err := preview("--file", promptFile(t, 200, ""), "--model", "accounts/a/models/m")
	require.Error(t, err)
	require.Regexp(t, `^row [1-4] of .*rows\.jsonl: accounts/a/models/m: accounts/a/models/m has no live deployment in `+
		"accounts/a\nhint: deploy the model with `anneal deployment create --model accounts/a/models/m --watch`$", shown)
	require.LessOrEqual(t, sent.Load(), int64(previewSenders))
	require.Zero(t, scored.Load())

	shown, err = preview("--file", promptFile(t, 3, "[1]"), "--model", "accounts/a/models/m")
	require.Error(t, err)
	require.Contains(t, shown, "row 3 of ")
	require.Contains(t, shown, "is not a JSON object")
	require.Zero(t, sent.Load(), "all rows are checked before one is sent")

	shown, err = preview("--file", promptFile(t, 25, ""))
	require.Error(t, err)
	require.Equal(t, "row 13 of --file: must be a JSON object", shown)
	for flags, message := range map[string]string{
		"--samples 0":                          "--samples 0 must be from 1 to 16",
		"--samples 17 --model m":               "--samples 17 must be",
		"--samples 2":                          "--samples requires --model",
		"--temperature 3 --model m":            "--temperature 3 must be from 0 to 2",
		"--max-tokens 5":                       "--max-tokens requires --model",
		"--max -1":                             "--max must be above 0, not -1",
		"--dir elsewhere":                      "either the ID of an evaluator or --dir",
		"--model m --max-tokens 0 --samples 1": "--max-tokens 0 must be at least 1",
	} {
		_, err := preview(append(strings.Fields(flags), "--file", "rows.jsonl")...)
		require.ErrorContains(t, err, message, flags)
	}
}
