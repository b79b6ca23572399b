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

// TestReadsOfDenseAndSparseFilters compares reads with a filter, in a log in which the filter
// selects most events, then few, then most again, with those of a log in memory.
func TestReadsOfDenseAndSparseFilters(t *testing.T) {
	log, memory := servertest.StartLog(t), eventlog.NewMemory()
	last := map[string]uint64{}
	add := func(id string) {
		w := logtest.Write(id, last[id])
		last[id] = logtest.Append(t, log, w)
		require.Equal(t, last[id], logtest.Append(t, memory, w))
	}
	for n := range 1200 {
		switch part := n / 400; {
		case part != 1 && n%10 != 0 || part == 1 && n%50 == 0:
			add("wanted")
		default:
			add("other")
		}
	}
	filter := logtest.Name("wanted").Subject()
	for _, after := range []uint64{0, 1, 63, 399, 500, 799, 1199, 1200} {
		var got, want []uint64
		for e, err := range log.Read(t.Context(), filter, after) {
			require.NoError(t, err)
			require.Equal(t, logtest.Name("wanted"), e.Name)
			got = append(got, e.Position)
		}
		for e, err := range memory.Read(t.Context(), filter, after) {
			require.NoError(t, err)
			want = append(want, e.Position)
		}
		require.Equal(t, want, got)
	}
}
