package agent

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestReplyOfAnAttemptThatIsNoLongerAssigned checks that the report of results is not canceled
// when the attempt is no longer assigned. The coordinator ends the assignment as soon as it has recorded
// the results.
func TestReplyOfAnAttemptThatIsNoLongerAssigned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		life, drop := context.WithCancel(t.Context())
		ctx, cancel := replyContext(life)
		defer cancel()
		drop()
		synctest.Wait()
		require.NoError(t, ctx.Err(), "the reply may still arrive")
		begun := time.Now()
		<-ctx.Done()
		require.Equal(t, replyTimeout, time.Since(begun))

		life, drop = context.WithCancel(t.Context())
		ctx, cancel = replyContext(life)
		cancel()
		require.Error(t, ctx.Err(), "cancel ends the context")
		drop()
	})
}
