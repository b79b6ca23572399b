package metering_test

import (
	"anneal/eventlog/servertest"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/metering"
	"anneal/eventlog/natsserver"
)

var noon = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

type use struct {
	name domain.Name
	at   time.Time
}

// followUses answers what a follower is told, and ends with the test.
func followUses(t *testing.T, u *metering.LastUsed) <-chan use {
	t.Helper()
	told := make(chan use, 16)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- u.Follow(ctx, func(name domain.Name, at time.Time) { told <- use{name, at} }) }()
	t.Cleanup(func() {
		stop()
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
	return told
}

func TestUsesAreToldToEveryServerAndAfterARestart(t *testing.T) {
	const first, second = domain.Name("accounts/acme/apiKeys/k1"), domain.Name("accounts/acme/apiKeys/k2")
	dir := t.TempDir()
	open := func(t *testing.T) *metering.LastUsed {
		u, err := metering.OpenLastUsed(t.Context(), servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = dir, false }).Control())
		require.NoError(t, err)
		return u
	}
	t.Run("live", func(t *testing.T) {
		u := open(t)
		told := followUses(t, u)
		require.NoError(t, u.Keep(t.Context(), first, noon))
		require.Equal(t, use{first, noon}, <-told)
		require.NoError(t, u.Keep(t.Context(), first, noon.Add(time.Minute)))
		require.Equal(t, use{first, noon.Add(time.Minute)}, <-told)
		require.NoError(t, u.Keep(t.Context(), second, noon))
		require.Equal(t, use{second, noon}, <-told)
		require.NoError(t, u.Forget(t.Context(), second))
	})
	t.Run("after a restart", func(t *testing.T) {
		u := open(t)
		told := followUses(t, u)
		require.Equal(t, use{first, noon.Add(time.Minute)}, <-told, "the newest of each, and nothing of what was forgotten")
		require.NoError(t, u.Keep(t.Context(), second, noon.Add(time.Hour)))
		require.Equal(t, use{second, noon.Add(time.Hour)}, <-told)
	})
}
