package request

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/idempotency"
)

// TestClaimIsRenewedWhileTheWorkContinues checks that a held claim is renewed until stop is
// called, and that release does not release it after stop.
func TestClaimIsRenewedWhileTheWorkContinues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers, digest := idempotency.NewMemory(), []byte("request")
		c := &Call{Core: &Core{Idempotency: answers}, Ctx: t.Context(), Time: time.Now()}
		claim, err := answers.Claim(t.Context(), "k", digest, c.Time, ClaimTime)
		require.NoError(t, err)
		held := idempotent{c}.renewLease(claim)
		state := func() idempotency.ClaimState {
			claim, err := answers.Claim(t.Context(), "k", digest, time.Now(), ClaimTime)
			require.NoError(t, err)
			return claim.State
		}
		<-time.After(10*ClaimTime + time.Millisecond)
		require.Equal(t, idempotency.InProgress, state())
		require.NoError(t, answers.Store(t.Context(), held.stop(), []byte("done")))
		<-time.After(2 * ClaimTime)
		require.Equal(t, idempotency.Completed, state())
		held.release()
		require.Equal(t, idempotency.Completed, state(), "a stopped claim is not released")
	})
}
