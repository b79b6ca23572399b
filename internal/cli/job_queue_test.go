package cli

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestQueueText(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.Local)
	at := func(minutes time.Duration) string { return now.Add(minutes * time.Minute).Format(time.RFC3339) }
	times := func(earliest, median, latest time.Duration) map[string]any {
		return map[string]any{"earliest": at(earliest), "median": at(median), "latest": at(latest)}
	}
	for want, queue := range map[string]map[string]any{
		"-":       {"waitingFor": "a node that can train"},
		"3 of 12": {"position": 3.0, "length": 12.0},
		"1 of 1, starts about 12:25 (12:10 to 12:40)": {"position": 1.0, "length": 1.0,
			"estimatedStartTime": times(10, 25, 40)},
		"2 of 2, starts about 13:00 (12:10 to 2026-03-02 12:00)": {"position": 2.0, "length": 2.0,
			"estimatedStartTime": times(10, 60, 24*60)},
	} {
		require.Equal(t, want, queueText(queue, now))
	}
}

// TestQueueColumn checks that lists have the column only while a job waits in a queue, and that the
// details and the progress of a job show its place.
func TestQueueColumn(t *testing.T) {
	waits := map[string]any{"name": "accounts/a/dpoJobs/j", "state": "JOB_STATE_PENDING",
		"queue": map[string]any{"position": 3.0, "length": 12.0, "waitingFor": "capacity"}}
	runs := map[string]any{"name": "accounts/a/dpoJobs/k", "state": "JOB_STATE_RUNNING"}
	columns := []column{{"ID", "#name"}}
	require.Equal(t, columns, withQueue(columns, []map[string]any{runs}))
	require.Equal(t, column{"QUEUE", queuePath}, withQueue(columns, []map[string]any{runs, waits})[1])
	require.Equal(t, "3 of 12", cell(waits, queuePath))
	require.Equal(t, "-", cell(runs, queuePath))
	require.Contains(t, progressLine(waits, ""), "PENDING")
	require.Contains(t, progressLine(waits, ""), "  queue 3 of 12")
	require.NotContains(t, progressLine(runs, ""), "queue")
}
