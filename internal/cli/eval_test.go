package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEvalDownloadsOnlyItsRows checks that --max ends the download of a dataset.
func TestEvalDownloadsOnlyItsRows(t *testing.T) {
	const rows = 1 << 20
	var written, sent atomic.Int64
	done := make(chan struct{})
	server := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":getDownloadEndpoint"):
			fmt.Fprintf(w, `{"filenameToSignedUrls":{"a.jsonl":"http://%s/file","b.jsonl":"http://%s/other"}}`, r.Host, r.Host)
		case r.URL.Path == "/file":
			defer close(done)
			for range rows {
				if _, err := fmt.Fprintf(w, `{"prompt":"%s","completion":"b"}`+"\n\n", strings.Repeat("a", 1000)); err != nil {
					return
				}
				written.Add(1)
			}
		case r.URL.Path == "/inference/v1/completions":
			sent.Add(1)
			_, _ = io.WriteString(w, `{"choices":[{"text":"b"}]}`)
		default:
			t.Errorf("unexpected request of %s", r.URL.Path)
		}
	}
	out, _, err := runOutput(t, server, "eval", "--dataset", "d", "--model", "a/b", "--max", "3", "--show", "1")
	require.NoError(t, err)
	require.Regexp(t, `(?m)^b +3 +3 of 3 \(100%\) +-$`, out)
	<-done
	require.EqualValues(t, 3, sent.Load())
	require.Less(t, written.Load(), int64(rows))
}

// TestEvalScoresInBatches checks that all rows are scored, with their numbers in messages, and that
// the rows are printed as JSON in their order.
func TestEvalScoresInBatches(t *testing.T) {
	var batches []int
	server := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":getDownloadEndpoint"):
			fmt.Fprintf(w, `{"filenameToSignedUrls":{"a.jsonl":"http://%s/file"}}`, r.Host)
		case r.URL.Path == "/file":
			for i := range 23 {
				fmt.Fprintf(w, `{"prompt":"%d"}`+"\n", i+1)
			}
		case strings.HasSuffix(r.URL.Path, ":previewEvaluator"):
			var body struct{ SampleData []map[string]any }
			_ = json.NewDecoder(r.Body).Decode(&body)
			batches = append(batches, len(body.SampleData))
			var results []any
			for _, row := range body.SampleData {
				results = append(results, map[string]any{"score": 0.5, "success": row["prompt"] != "22", "reason": "even"})
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"results": results})
		default:
			_, _ = io.WriteString(w, `{"choices":[{"text":"<b>"}]}`)
		}
	}
	out, output, err := runOutput(t, server, "eval", "--dataset", "d", "--model", "a/b", "--evaluator", "e", "-o", "json")
	require.NoError(t, err)
	require.Equal(t, []int{10, 10, 3}, batches)
	require.Equal(t, "row 22: evaluator e returned no valid score: even\n", output)
	var printed struct {
		Models []evaluation
		Rows   []struct {
			Row       map[string]string
			Responses []string
			Scores    []*float64
		}
	}
	require.NoError(t, json.Unmarshal([]byte(out), &printed))
	require.Len(t, printed.Rows, 23)
	for i, row := range printed.Rows {
		require.Equal(t, fmt.Sprint(i+1), row.Row["prompt"])
		require.Equal(t, []string{"<b>"}, row.Responses)
	}
	require.Nil(t, printed.Rows[21].Scores[0])
	require.Equal(t, 22, printed.Models[0].Scored)
	require.InDelta(t, 0.5, *printed.Models[0].MeanScore, 1e-9)
	require.Contains(t, out, "  \"rows\": [\n    {\n      \"responses\": [\n", "the output is indented")
}
