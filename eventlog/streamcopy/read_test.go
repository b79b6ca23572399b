package streamcopy_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/servertest"
	"anneal/eventlog/streamcopy"
)

// TestReadEndsWithoutTheLastMessages reads streams that have deleted some of their messages: Read
// ends although the position of the newest message that the stream ever had is not reached.
func TestReadEndsWithoutTheLastMessages(t *testing.T) {
	const n = 5
	for name, c := range map[string]struct {
		cursor  uint64
		deleted []uint64
		want    []uint64
	}{
		"all":                  {0, []uint64{1, 2, 3, 4, 5}, nil},
		"the oldest":           {0, []uint64{1, 2}, []uint64{3, 4, 5}},
		"the newest":           {0, []uint64{4, 5}, []uint64{1, 2, 3}},
		"between":              {1, []uint64{3}, []uint64{2, 4, 5}},
		"all after the cursor": {3, []uint64{4, 5}, nil},
		"none":                 {2, nil, []uint64{3, 4, 5}},
	} {
		t.Run(name, func(t *testing.T) {
			nc := servertest.Start(t).Control()
			js := servertest.JetStream(t, nc)
			stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "COPIED", Subjects: []string{"copied"}})
			require.NoError(t, err)
			for range n {
				_, err := js.Publish(t.Context(), "copied", []byte("x"))
				require.NoError(t, err)
			}
			for _, position := range c.deleted {
				require.NoError(t, stream.DeleteMsg(t.Context(), position))
			}
			state, err := streamcopy.StateOf(t.Context(), nc, "COPIED")
			require.NoError(t, err)
			require.EqualValues(t, n, state.Last)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var found []uint64
			for m, err := range streamcopy.Read(ctx, nc, "COPIED", c.cursor, state.Last) {
				require.NoError(t, err)
				found = append(found, m.Position)
			}
			require.Equal(t, c.want, found)
		})
	}
}
