package subscriptions

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/delivery"
	"anneal/domain"
)

// TestRedeliveryFromPosition checks that events are delivered again from a position on, once more each.
func TestRedeliveryFromPosition(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.subscribe(toWebhook(v.URL))
	b.start()
	var from uint64
	for n := range 20 {
		if p := b.record("a", n); n == 5 {
			from = p
		}
	}
	b.idle()
	before := len(v.events())
	b.on(domain.RequestRedelivery{Position: domain.Count(from)})
	b.eventually(func() bool { return !b.subscription().Redelivers })
	b.idle()
	var again []string
	for _, e := range v.events()[before:] {
		if strings.HasSuffix(e.Subject, "/a") {
			again = append(again, e.Position)
		}
	}
	require.Len(t, again, 15)
	require.Equal(t, fmt.Sprint(from), again[0])
}

// TestRedeliveryHasNoDeadLettersTwice checks that the dead letters from a position on are no dead letters
// any more when their events are delivered again from that position.
func TestRedeliveryHasNoDeadLettersTwice(t *testing.T) {
	var broken atomic.Bool
	broken.Store(true)
	v := newReceiver(t, func(w http.ResponseWriter, _ *http.Request, _ received) bool {
		if !broken.Load() {
			return false
		}
		w.WriteHeader(http.StatusBadRequest)
		return true
	})
	b := newHarness(t)
	b.policy.GiveUp = time.Nanosecond
	b.subscribe(toWebhook(v.URL))
	for n := range 3 {
		b.record("a", n)
	}
	b.start()
	b.eventually(func() bool { return len(b.delivery().DeadLetters) == 4 })
	b.on(domain.RequestRedelivery{Position: 2})
	b.eventually(func() bool { return !b.subscription().Redelivers })
	b.idle()
	positions := map[uint64]int{}
	for _, l := range b.delivery().DeadLetters {
		positions[l.Position]++
		require.Equal(t, 1, positions[l.Position])
	}
	broken.Store(false)
	b.on(domain.RequestRedelivery{Position: 2})
	b.eventually(func() bool { return !b.subscription().Redelivers })
	b.idle()
	require.Len(t, b.delivery().DeadLetters, 1, "of the event at position 1")
}

// TestCursorMismatch checks that a subscription is disabled when the log does not have the event of its
// cursor, and continues from a position that its user gives.
func TestCursorMismatch(t *testing.T) {
	b, v := newHarness(t), newReceiver(t, nil)
	b.subscribe(toWebhook(v.URL))
	stop := b.start()
	b.record("a", 0)
	b.idle()
	stop()
	row, _ := b.world.View().Subscriptions.Get(subscriptionName)
	state := b.delivery()
	state.Cursor.EventID = "event of another log"
	lost := delivery.Letter{Cursor: delivery.Cursor{Position: 1, EventID: "another event of another log"},
		Resource: "accounts/acme/datasets/a"}
	state.Retries, state.DeadLetters = []delivery.Letter{lost}, []delivery.Letter{lost}
	w := webhook{session: &session{Runner: &Runner{Blobs: b.blobs, Now: time.Now}, name: subscriptionName,
		event: row.CreateEvent}, state: state}
	require.NoError(t, w.save(t.Context()))
	b.start()
	b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	require.Contains(t, b.subscription().Status.Message, "restored from a backup")
	b.record("a", 1)
	b.on(domain.ResumeSubscription{})
	b.eventually(func() bool { return b.subscription().State == domain.SubscriptionDisabledState })
	b.on(domain.RequestRedelivery{Position: 2, DeadLetters: true})
	b.on(domain.ResumeSubscription{})
	b.requireComplete(v, 0)
	b.idle()
	require.Empty(t, b.delivery().LastError)
}
