package eventlog_test

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/servertest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadsFetchOnlyWhatIsNeeded checks that Read fetches no further page when the caller stops
// early, and that Count fetches one event.
func TestReadsFetchOnlyWhatIsNeeded(t *testing.T) {
	log, last := servertest.StartLog(t), uint64(0)
	for range 4 * eventlog.FirstEvents {
		last = logtest.Append(t, log, logtest.Write("a", last))
	}
	fetched := func(read func()) uint64 {
		before := log.InMsgs()
		read()
		return log.InMsgs() - before
	}
	require.LessOrEqual(t, fetched(func() {
		for _, err := range log.Read(t.Context(), "events.acme.>", 0) {
			require.NoError(t, err)
			return
		}
	}), uint64(eventlog.FirstEvents+2), "one page, its end, and the position of the newest event")
	require.Equal(t, uint64(2), fetched(func() {
		n, err := log.Count(t.Context(), "events.acme.>")
		require.NoError(t, err)
		require.Equal(t, last, n)
	}))
}
