package routing

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/routing/balance"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
)

const deployment domain.Name = "accounts/acme/deployments/d1"

func rowOf(created, version uint64, replicas ...string) *projections.Row[domain.Deployment] {
	row := &projections.Row[domain.Deployment]{Name: deployment, CreateVersion: created, Version: version}
	row.State.Replicas = map[string]domain.Replica{}
	for _, id := range replicas {
		row.State.Replicas[id] = domain.Replica{ID: id}
	}
	return row
}

// cachedOn returns how many tokens of a prompt a replica is predicted to have cached.
func cachedOn(b *balance.Balancer, p balance.Prompt, replica string) int64 {
	choice, _ := b.Choose(0, balance.Query{Prompt: p, Candidates: []balance.Candidate{{ID: replica}}})
	return choice.Cached
}

// TestBalancersFollowTheirDeployment checks that a Balancer forgets replaced replicas, also when
// their number stays the same, and all of a deployment that was deleted and created again; and that
// a request with an older row does not make it forget new replicas.
func TestBalancersFollowTheirDeployment(t *testing.T) {
	b := balancers{hasher: balance.NewHasher(nil)}
	clock := func() time.Time { return time.Unix(0, 0) }
	get := func(row *projections.Row[domain.Deployment]) *balance.Balancer {
		one, _ := b.forDeployment(row, clock)
		return one
	}
	p := b.hasher.Text("", []byte(strings.Repeat("word ", 1000)))
	require.NotEmpty(t, p.Blocks)
	first := get(rowOf(1, 2, "r1", "r2"))
	first.Record(0, balance.SentPrompt{Replica: "r1", Blocks: p.Blocks})
	first.Record(0, balance.SentPrompt{Replica: "r2", Blocks: p.Blocks})
	require.Same(t, first, get(rowOf(1, 3, "r2", "r3")))
	first.Record(0, balance.SentPrompt{Replica: "r3", Blocks: p.Blocks})
	get(rowOf(1, 2, "r1", "r2"))
	assert.Zero(t, cachedOn(first, p, "r1"))
	assert.Positive(t, cachedOn(first, p, "r2"))
	assert.Positive(t, cachedOn(first, p, "r3"))
	assert.NotSame(t, first, get(rowOf(4, 5, "r2")), "created again")
}

// TestBalancersOfUnusedDeploymentsAreForgotten checks that Balancers are removed some time after
// their last request.
func TestBalancersOfUnusedDeploymentsAreForgotten(t *testing.T) {
	b, now := balancers{}, time.Unix(0, 0)
	clock := func() time.Time { return now }
	b.forDeployment(rowOf(1, 2, "r1"), clock)
	now = now.Add(balancerKept + time.Second)
	other := rowOf(3, 4, "r1")
	other.Name = "accounts/acme/deployments/d2"
	b.forDeployment(other, clock)
	assert.Len(t, b.byDeployment, 1)
	assert.Contains(t, b.byDeployment, other.Name)
}

// TestPromptsOfAddonsDiffer checks that the prompt of an attempt belongs to the addon of the
// attempt, which may have replaced the addon of the request.
func TestPromptsOfAddonsDiffer(t *testing.T) {
	b := balancers{hasher: balance.NewHasher(nil)}
	req := &engines.CompletionRequest{Addon: "old", Prompt: strings.Repeat("word ", 1000)}
	assert.NotEqual(t, b.promptOf(req, "old").Blocks, b.promptOf(req, "new").Blocks)
	assert.Equal(t, b.promptOf(req, "new").Blocks, b.promptOf(req, "new").Blocks)
}

// TestPanicsLeaveNothingPending checks that an attempt whose Send panics does not count as pending.
func TestPanicsLeaveNothingPending(t *testing.T) {
	b, p := balance.New(nil), balance.Prompt{Tokens: 10_000}
	one := []balance.Candidate{{ID: "r1"}}
	choice, _ := b.Choose(0, balance.Query{Prompt: p, Candidates: one})
	a := &Attempt{Replica: domain.Replica{ID: "r1"}, sent: b.Send(0, "r1", p, choice),
		now: func() time.Duration { return 0 }}
	s := &sendState{c: &request.Call{Core: &request.Core{Busy: request.NewCounters()}}, router: &Router{},
		q: Request{Deployment: deployment, Send: func(context.Context, *Attempt) (bool, error) { panic("a fault") }}}
	assert.Panics(t, func() { _, _ = s.attempt(t.Context(), a) })
	choice, _ = b.Choose(0, balance.Query{Candidates: one})
	assert.Zero(t, choice.Pending)
	assert.Zero(t, s.c.Busy.Of(replicaKey(deployment, "r1")))
}

// TestRoutesHideTheWorkOfOtherAccounts checks that the header anneal-route does not tell one
// account how much work others send to a deployment that serves all accounts.
func TestRoutesHideTheWorkOfOtherAccounts(t *testing.T) {
	choice := balance.Choice{Reason: balance.ReasonTokens, Pending: 1210, Cached: 512, Uncached: 7}
	for want, p := range map[string]request.Principal{
		"replica=r1; reason=tokens; candidates=2; requests=3; pending-tokens=1210; cached-tokens=512; " +
			"uncached-tokens=7": {Account: "acme"},
		"replica=r1; reason=tokens; candidates=2; cached-tokens=512; uncached-tokens=7": {Account: "other"},
	} {
		assert.Equal(t, want, routeOf(p, deployment, "r1", 2, 3, choice))
	}
}
