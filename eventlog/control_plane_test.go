package eventlog_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/servertest"
	"anneal/internal/testutil"
)

// TestEventsNameTheirControlPlane checks that the log names the control plane in the events that it
// appends, and that events of earlier versions, which name no control plane, can be read.
func TestEventsNameTheirControlPlane(t *testing.T) {
	log := servertest.StartLog(t)
	last := logtest.Append(t, log, logtest.Write("a", 0))
	log.DecideAs("cp-1")
	last = logtest.Append(t, log, logtest.Write("a", last))
	restored := logtest.Write("a", last)
	restored.ControlPlane = "cp-0"
	logtest.Append(t, log, restored)
	var named []string
	for _, e := range logtest.Collect(t, log.Read(t.Context(), "", 0)) {
		named = append(named, e.ControlPlane)
		text := testutil.Marshal(t, eventlog.Structured(e))
		var tree map[string]any
		require.NoError(t, json.Unmarshal(text, &tree))
		if e.ControlPlane == "" {
			require.NotContains(t, tree, "controlplane")
		} else {
			require.Equal(t, e.ControlPlane, tree["controlplane"])
		}
	}
	require.Equal(t, []string{"", "cp-1", "cp-0"}, named)
}

// TestUnreadableEventsAreRefused checks that events that another control plane cannot read are not
// recorded.
func TestUnreadableEventsAreRefused(t *testing.T) {
	log, write := servertest.StartLog(t), logtest.Write("a", 0)
	log.RequireReadable(func(eventType string) bool { return eventType != write.Type })
	_, err := log.Append(t.Context(), write)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "cannot read events of type "+write.Type)
	require.Empty(t, logtest.Collect(t, log.Read(t.Context(), "", 0)))
	log.RequireReadable(func(string) bool { return true })
	logtest.Append(t, log, write)
}
