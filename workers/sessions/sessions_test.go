package sessions

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

const (
	account = domain.Name("accounts/acme")
	one     = domain.Name("accounts/acme/subscriptions/one")
	two     = domain.Name("accounts/acme/subscriptions/two")
)

var create = domain.CreateSubscription{SubscriptionSpec: domain.SubscriptionSpec{
	Webhook: &domain.Webhook{URL: "https://example.com"}}}

// A harness is a group of sessions of the subscriptions of accounts that are not suspended.
type harness struct {
	*testing.T
	log   *eventlog.Memory
	world *projections.World

	mu       sync.Mutex
	asked    int                                // number of calls of Needs
	sessions map[domain.Name]context.CancelFunc // cancels each running session
	begun    int
}

// start runs the group until the test ends, in the bubble of synctest.
func start(t *testing.T) *harness {
	b := &harness{T: t, log: eventlog.NewMemory(), world: projections.NewWorld(),
		sessions: map[domain.Name]context.CancelFunc{}}
	group := Group[domain.Subscription]{World: b.world, Kind: domain.Subscriptions,
		Others: []domain.AnyKind{domain.Accounts},
		Needs: func(v *projections.View, row *projections.Row[domain.Subscription]) bool {
			b.asked++
			owner, ok := v.Accounts.Get(account)
			return ok && !owner.State.Suspended()
		},
		Session: func(ctx context.Context, row *projections.Row[domain.Subscription]) {
			ctx, end := context.WithCancel(ctx)
			b.mu.Lock()
			b.sessions[row.Name], b.begun = end, b.begun+1
			b.mu.Unlock()
			<-ctx.Done()
			b.mu.Lock()
			delete(b.sessions, row.Name)
			b.mu.Unlock()
		}}
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	go func() { _ = group.Run(t.Context()) }()
	synctest.Wait()
	return b
}

func do[S domain.State](b *harness, kind *domain.Kind[S], name domain.Name, command domain.Command[S]) {
	b.Helper()
	_, err := eventlog.Do(b.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
		domain.Intend(kind, name, command))
	require.NoError(b, err)
	synctest.Wait()
}

// TestGroupFollowsNeeds checks that a session runs while its resource needs one, which the rows of
// other kinds may decide, that a session that ends early is run again, and that the changes of
// kinds on which nothing depends cause no scan.
func TestGroupFollowsNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := start(t)
		requireSessions := func(running, begun int) {
			t.Helper()
			require.Len(t, b.sessions, running)
			require.Equal(t, begun, b.begun)
		}
		do(b, domain.Subscriptions, one, create)
		requireSessions(0, 0)
		do(b, domain.Accounts, account, domain.CreateAccount{})
		requireSessions(1, 1)
		do(b, domain.Subscriptions, two, create)
		requireSessions(2, 2)

		asked := b.asked
		do(b, domain.Datasets, "accounts/acme/datasets/d", domain.CreateDataset{
			DatasetSpec: domain.DatasetSpec{UserUploaded: &struct{}{}}})
		require.Equal(t, asked, b.asked, "no session depends on datasets")

		b.sessions[one]()
		synctest.Wait()
		requireSessions(2, 3)
		do(b, domain.Accounts, account, domain.SuspendAccount{SuspendState: "CREDIT_DEPLETED"})
		requireSessions(0, 3)
		do(b, domain.Accounts, account, domain.RestoreAccount{})
		requireSessions(2, 5)
		do(b, domain.Subscriptions, one, domain.DeleteSubscription{})
		requireSessions(1, 5)
	})
}
