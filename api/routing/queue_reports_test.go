package routing

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestQueueLengthsAreReported checks that the control planes learn how many requests wait at a
// gateway, that these count as the deployment's load, and that an empty queue is reported for a
// while.
func TestQueueLengthsAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 1, 1)
		g.router.TakeNotes(time.Now()) // enables notes
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { _ = g.serve(t.Context(), g.call("acme"), 100, 10, 2*time.Second) })
		}
		synctest.Wait()
		report := func() []Note {
			g.router.QueueLengths("gateway-1")
			messages := EncodeNotes(g.router.TakeNotes(time.Now()))
			if len(messages) == 0 {
				return nil
			}
			received, err := DecodeNotes(messages[0])
			require.NoError(t, err)
			return received
		}
		world := g.core.World.Live()
		for range 5 {
			notes := report()
			require.NotEmpty(t, notes)
			for _, note := range notes {
				if note.Waiting != nil {
					require.Equal(t, "gateway-1", note.Replica)
					world.QueueLength(note.Deployment, note.Replica, *note.Waiting, time.Now())
				}
			}
			time.Sleep(time.Second)
		}
		require.EqualValues(t, 3, g.core.World.View().Live.Loads(deployment).Latest.Peak,
			"three requests wait, and a replica has reported none")
		all.Wait()
		empty := 0
		for range 3 * emptyReports {
			for _, note := range report() {
				if note.Waiting != nil {
					require.Zero(t, *note.Waiting)
					empty++
				}
			}
		}
		require.Equal(t, emptyReports, empty)
	})
	_, err := DecodeNotes([]byte(`[{"deployment": "accounts/acme/deployments/d", "waiting": -1}]`))
	require.ErrorContains(t, err, "a queue of -1 requests")
}

// TestRequestsOfADeletedDeploymentEnd checks that requests leave the queue within a second after
// their deployment is deleted.
func TestRequestsOfADeletedDeploymentEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGateway(t, 1, 1)
		errs := make(chan error, 5)
		for range 5 {
			go func() { errs <- g.serve(t.Context(), g.call("acme"), 100, 10, 20*time.Second) }()
		}
		synctest.Wait()
		require.Equal(t, 4, g.queue().admission.Len())
		g.do(domain.DeleteDeployment{IgnoreChecks: true})
		begin := time.Now()
		for range 4 {
			require.Error(t, <-errs)
		}
		require.LessOrEqual(t, time.Since(begin), renewInterval)
		require.NoError(t, <-errs, "the request that a replica has begun to answer")
	})
}
