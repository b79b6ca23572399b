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

// followReports returns a channel that receives each use that Follow reports until the test ends.
func followReports(t *testing.T, u *metering.LastUsed) <-chan use {
	t.Helper()
	reported := make(chan use, 16)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- u.Follow(ctx, func(name domain.Name, at time.Time) { reported <- use{name, at} }) }()
	t.Cleanup(func() {
		stop()
		assert.ErrorIs(t, <-ended, context.Canceled)
	})
	return reported
}

func TestUsesAreReportedToEveryServerAndAfterARestart(t *testing.T) {
	const first, second = domain.Name("accounts/acme/apiKeys/k1"), domain.Name("accounts/acme/apiKeys/k2")
	dir := t.TempDir()
	open := func(t *testing.T) *metering.LastUsed {
		u, err := metering.OpenLastUsed(t.Context(),
			servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = dir, false }).Control())
		require.NoError(t, err)
		return u
	}
	t.Run("live", func(t *testing.T) {
		u := open(t)
		reported := followReports(t, u)
		require.NoError(t, u.Keep(t.Context(), first, noon))
		require.Equal(t, use{first, noon}, <-reported)
		require.NoError(t, u.Keep(t.Context(), first, noon.Add(time.Minute)))
		require.Equal(t, use{first, noon.Add(time.Minute)}, <-reported)
		require.NoError(t, u.Keep(t.Context(), second, noon))
		require.Equal(t, use{second, noon}, <-reported)
		require.NoError(t, u.Forget(t.Context(), second))
	})
	t.Run("after a restart", func(t *testing.T) {
		u := open(t)
		reported := followReports(t, u)
		require.Equal(t, use{first, noon.Add(time.Minute)}, <-reported, "the newest of each, without the deleted one")
		require.NoError(t, u.Keep(t.Context(), second, noon.Add(time.Hour)))
		require.Equal(t, use{second, noon.Add(time.Hour)}, <-reported)
	})
}

// TestFollowContinuesWhenTheBucketIsBack checks that Follow reports uses after the stream of its
// bucket was missing, and was then created again.
func TestFollowContinuesWhenTheBucketIsBack(t *testing.T) {
	const key = domain.Name("accounts/acme/apiKeys/k1")
	s := servertest.Start(t)
	js := servertest.JetStream(t, s.Control())
	u, err := metering.OpenLastUsed(t.Context(), s.Control())
	require.NoError(t, err)
	requests, err := s.Control().SubscribeSync("$JS.API.CONSUMER.>")
	require.NoError(t, err)
	require.NoError(t, js.DeleteStream(t.Context(), "KV_USES"))
	reported := followReports(t, u)
	_, err = requests.NextMsgWithContext(t.Context())
	require.NoError(t, err)
	require.NoError(t, metering.EnsureLastUsed(t.Context(), js, 1))
	require.NoError(t, u.Keep(t.Context(), key, noon))
	require.Equal(t, use{key, noon}, <-reported)
}
