package request

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
)

// TestWithGiven checks which values a violation repeats, and where.
func TestWithGiven(t *testing.T) {
	body, err := wire.Parse([]byte(`{"options": {"seed": -1, "top_k": 7}, "rows": [[{"n": 2.50}], 3], "name": "wört",
		"many": [1, 2, 3], "zero": 0, "on": true}`))
	require.NoError(t, err)
	for _, line := range []struct{ field, description, want string }{
		{"options.seed", "must be from 0 to 10", "must be from 0 to 10, is -1"},
		{"options.topK", "must be at most 5; 0 stands for the default", "must be at most 5, is 7; 0 stands for the default"},
		{"options.topK", "must be at most 5: leave it out", "must be at most 5, is 7: leave it out"},
		{"options.topK", "must be at most 5, is 7", "must be at most 5, is 7"},
		{"options.topK", "must be 5, not 7", "must be 5, not 7"},
		{"options.topK", "is not a field of this object", "is not a field of this object"},
		{"options.topK", "must be at most 5, because it is", "must be at most 5, is 7, because it is"},
		{"rows[0][0].n", "must be a whole number", "must be a whole number, is 2.50"},
		{"rows[1]", "must be 2", "must be 2, is 3"},
		{"rows[2]", "must be 2", "must be 2"},
		{"rows[x]", "must be 2", "must be 2"},
		{"rows.n", "must be 2", "must be 2"},
		{"options", "must be 2", "must be 2"},
		{"options.absent.deep", "must be 2", "must be 2"},
		{"zero", "must be positive", "must be positive, is 0"},
		{"many", "must have at most 2 entries", "must have at most 2 entries, has 3"},
		{"name", "must have at most 3 characters", "must have at most 3 characters, has 4"},
		{"name", "must have at most 4 bytes: shorten it", "must have at most 4 bytes, has 5: shorten it"},
		{"name", "must be the ID of a secret", "must be the ID of a secret"},
		{"on", "must be false", "must be false"},
		{"", "must be an object", "must be an object"},
	} {
		require.Equal(t, line.want, withGiven(line.description, lookUp(body, line.field)), line.field)
	}
}
