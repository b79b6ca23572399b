package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestProgressWithoutTerminal checks that the progress of a slow job is printed at changes of its state, at
// every stride, and otherwise once in progressEvery.
func TestProgressWithoutTerminal(t *testing.T) {
	var out bytes.Buffer
	w := &jobWatch{}
	draw := func(state string, percent float64) int {
		out.Reset()
		w.draw(&out, false, map[string]any{"state": "JOB_STATE_" + state, "jobProgress": map[string]any{"percent": percent}})
		return strings.Count(out.String(), "\n")
	}
	require.Equal(t, 1, draw("RUNNING", 0))
	require.Equal(t, 0, draw("RUNNING", 1))
	require.Equal(t, 1, draw("RUNNING", progressStride))
	w.printed = time.Now().Add(-progressEvery)
	require.Equal(t, 1, draw("RUNNING", progressStride+1))
	require.Equal(t, 0, draw("RUNNING", progressStride+2))
	require.Equal(t, 1, draw("WRITING_RESULTS", progressStride+2))
}

// TestBatchesWithoutFile checks that the error of a file that a batch does not have says why, and what to do.
func TestBatchesWithoutFile(t *testing.T) {
	for _, test := range []struct {
		status, output, failed string
		errors                 bool
		message                string
	}{
		{"in_progress", "", "", false, "batch b is in_progress and has no results until it has ended: `anneal batch " +
			"get b`"},
		{"completed", "o", "", true, "batch b has no errors, because no request failed: leave out --errors"},
		{"completed", "", "e", false, "batch b has no results, because every request failed: print the errors with --errors"},
		{"failed", "", "", false, "batch b is failed and sent no request: `anneal batch get b` shows why"},
		{"failed", "", "", true, "batch b is failed and sent no request: `anneal batch get b` shows why"},
	} {
		item := map[string]any{"id": "b", "status": test.status, "output_file_id": test.output, "error_file_id": test.failed}
		require.ErrorContains(t, withoutFile(item, test.errors), test.message)
	}
}
