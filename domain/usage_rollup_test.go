package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

func randomUsageCommand(t *rapid.T, u domain.UsageRollup) domain.Command[domain.UsageRollup] {
	last, number := u.Window, uint64(near(t, int(u.Window.Number)+1))
	window := domain.UsageWindow{Number: number, From: last.To, To: domain.UsageCursor{Sequence: last.To.Sequence + 5,
		Position: last.To.Position + 3}, Since: last.Until, Until: last.Until.Add(time.Hour)}
	if rapid.IntRange(0, 9).Draw(t, "gap") == 0 {
		window.From.Position++
	}
	part := domain.UsagePart{Window: max(1, last.Number), Part: near(t, u.Part+1), Parts: 3,
		Rows: make([]domain.UsageRow, pick(t, "rows", 1, 1, domain.MaxUsageRows, domain.MaxUsageRows+1))}
	return pick[domain.Command[domain.UsageRollup]](t, "command", domain.OpenUsageWindow{UsageWindow: window},
		domain.CompleteUsageWindow{UsageWindowCompleted: domain.UsageWindowCompleted{Window: number,
			Records: []domain.UsageRecords{{Source: "cp", From: 1, To: number, Count: 1}}}},
		domain.CompleteUsageWindow{UsageWindowCompleted: domain.UsageWindowCompleted{Window: last.Number}},
		domain.RollUpUsage{UsagePart: part}, domain.RollUpUsage{UsagePart: part, Correction: true})
}

// TestUsageWindowsHaveNoGaps checks that a window is opened once, only after the one before it is complete,
// and only where that ends.
func TestUsageWindowsHaveNoGaps(t *testing.T) {
	var ledger domain.UsageRollup
	first := domain.UsageWindow{Number: 1, To: domain.UsageCursor{Sequence: 10, Position: 20}, Until: noon}
	decide := func(command domain.Command[domain.UsageRollup]) (bool, error) {
		event, err := command.Decide(ledger, noon)
		if err == nil && event != nil {
			event.Evolve(&ledger)
		}
		return event != nil, err
	}
	next := domain.UsageWindow{Number: 2, From: first.To, To: domain.UsageCursor{Sequence: 30, Position: 40},
		Since: noon, Until: noon.Add(time.Hour)}
	recorded, err := decide(domain.OpenUsageWindow{UsageWindow: first})
	require.NoError(t, err)
	require.True(t, recorded)
	_, err = decide(domain.OpenUsageWindow{UsageWindow: next})
	require.ErrorContains(t, err, "window 2 cannot be opened: window 1 is not complete")
	_, err = decide(domain.CompleteUsageWindow{UsageWindowCompleted: domain.UsageWindowCompleted{Window: 1}})
	require.NoError(t, err)
	for _, wrong := range []func(*domain.UsageWindow){
		func(w *domain.UsageWindow) { w.From.Position-- },
		func(w *domain.UsageWindow) { w.Since = w.Since.Add(time.Hour) },
		func(w *domain.UsageWindow) { w.Until = w.Since.Add(-time.Hour) },
	} {
		gap := next
		wrong(&gap)
		_, err = decide(domain.OpenUsageWindow{UsageWindow: gap})
		require.ErrorContains(t, err, "window 2 does not start at the end of window 1")
	}
	for _, want := range []bool{true, false} { // two control planes open it
		recorded, err = decide(domain.OpenUsageWindow{UsageWindow: next})
		require.NoError(t, err)
		require.Equal(t, want, recorded)
	}
}
