package cli

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDevicesOfEndedAllocations checks that `anneal node top` lists a device that is still used for
// an allocation that the log has released already.
func TestDevicesOfEndedAllocations(t *testing.T) {
	rows := topRows(decoded(t, `{"name": "accounts/system/nodes/n1", "state": "READY", "scheduling": "DRAINED",
		"allocations": [{"id": "d#r3", "takes": {"cpuMilli": 100}}], "devices": [
		{"type": "L4", "index": 0, "health": "OK", "allocation": "d#r1"},
		{"type": "L4", "index": 1, "health": "OK"},
		{"type": "L4", "index": 2, "health": "OK", "allocation": "d#r2", "sharing": ["d#r2", "d#r3"]}]}`))
	var shown []string
	for _, row := range rows {
		shown = append(shown, fmt.Sprint(row["device"], " ", row["work"]))
	}
	require.Equal(t, []string{"2 L4 d#r3", "0 L4 d#r1 (ending)", "1 L4 ", "2 L4 d#r2 (ending)"}, shown)
}
