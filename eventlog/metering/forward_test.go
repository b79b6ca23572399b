package metering

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestPassedEntries checks the numbers after an entry that the stream has already: lost records
// before it have numbers, and so has the record if this control plane has sent it.
func TestPassedEntries(t *testing.T) {
	for name, c := range map[string]struct {
		lost  uint64
		there seenRecord
		want  uint64
	}{
		"of another control plane":              {0, seenRecord{"cp-2", 9}, 5},
		"of another one, after lost records":    {2, seenRecord{"cp-2", 9}, 7},
		"of this one":                           {0, seenRecord{"cp-1", 6}, 6},
		"of this one, after lost records":       {2, seenRecord{"cp-1", 8}, 8},
		"of this one, earlier, after lost ones": {2, seenRecord{"cp-1", 3}, 7},
		"of an earlier version":                 {1, seenRecord{}, 6},
	} {
		t.Run(name, func(t *testing.T) {
			at := cursor{Numbers: map[string]uint64{"cp-1": 5, "cp-2": 9}}
			at.pass(entry{ControlPlane: "cp-1", Lost: c.lost}, c.there)
			require.Equal(t, map[string]uint64{"cp-1": c.want, "cp-2": 9}, at.Numbers)
		})
	}
}
