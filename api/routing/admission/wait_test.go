package admission

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// measured returns a Queue that serves a cost of 1000 per second.
func measured() *Queue {
	q := NewQueue()
	q.rate = rate{cost: 10_000, time: 10 * time.Second}
	return q
}

// TestPredictWait checks predictions against what the order of the queue means: see PredictWait.
func TestPredictWait(t *testing.T) {
	wall := time.Unix(1000, 0)
	type of struct {
		account  string
		class    Class
		weight   int64
		requests int  // with a cost of 1000 each
		promised bool // the requests are not in the queue, but promised
	}
	for name, test := range map[string]struct {
		others []of
		class  Class
		weight int64
		want   time.Duration
	}{
		"nothing waits":   {nil, Interactive, 1, 0},
		"own requests":    {[]of{{"a", 0, 1, 5, false}}, Interactive, 1, 5 * time.Second},
		"own promises":    {[]of{{"a", 0, 1, 5, true}}, Interactive, 1, 5 * time.Second},
		"another account": {[]of{{"b", 0, 1, 50, false}}, Interactive, 1, 0},
		"another account with less": {[]of{{"a", 0, 1, 5, false}, {"b", 0, 1, 2, false}}, Interactive, 1,
			7 * time.Second},
		"another account with more": {[]of{{"a", 0, 1, 5, false}, {"b", 0, 1, 50, false}}, Interactive, 1,
			10 * time.Second},
		"promises to two others": {[]of{{"a", 0, 1, 5, true}, {"b", 0, 1, 9, true}, {"c", 0, 1, 9, true}},
			Interactive, 1, 15 * time.Second},
		"with three times the weight": {[]of{{"a", 0, 3, 6, false}, {"b", 0, 1, 50, false}}, Interactive, 3,
			8 * time.Second},
		"beside another's batch": {[]of{{"a", 0, 1, 9, false}, {"b", 1, 1, 50, false}}, Interactive, 1,
			10 * time.Second},
		"batch beside the own account": {[]of{{"a", 1, 1, 2, false}, {"a", 0, 1, 50, true}}, Batch, 1,
			20 * time.Second},
		"batch beside few": {[]of{{"a", 1, 1, 2, false}, {"b", 0, 1, 7, true}}, Batch, 1, 9 * time.Second},
	} {
		q, promises := measured(), NewPromises()
		id := uint64(0)
		for _, one := range test.others {
			for range one.requests {
				id++
				r := &Request{ID: id, Account: one.account, Class: one.class, Weight: one.weight, Prompt: 1000}
				if one.promised {
					require.True(t, promises.Add(wall, r, Ticket{Issued: wall, Wait: time.Minute, ID: id}))
				} else {
					q.Add(r)
				}
			}
		}
		r := &Request{ID: id + 1, Account: "a", Class: test.class, Weight: test.weight, Prompt: 1000}
		q.Add(r)
		wait, known := q.PredictWait(0, r, promises, wall)
		assert.True(t, known, name)
		assert.Equal(t, test.want, wait, name)
	}
	q := NewQueue()
	r := &Request{Account: "a", Prompt: 1}
	q.Add(r)
	_, known := q.PredictWait(0, r, NewPromises(), wall)
	assert.False(t, known, "no request has left the queue yet")
}

// TestPromises checks that a promise is kept once, in its window, and that the cost of promises is
// weighted by the rate at which clients return.
func TestPromises(t *testing.T) {
	now := time.Unix(1000, 0)
	after := func(seconds float64) time.Time { return now.Add(time.Duration(seconds * float64(time.Second))) }
	p := NewPromises()
	r := &Request{Account: "a", Prompt: 100, Answer: 10, Body: 5}
	ticket := func(id uint64) Ticket { return Ticket{Issued: now, Wait: 20 * time.Second, ID: id} }
	for id := range uint64(40) {
		require.True(t, p.Add(now, r, ticket(id)))
	}
	expected := func(at time.Time) (sum int64) {
		p.expected(at, func(_ flowKey, _, cost int64) { sum += cost })
		return sum
	}
	assert.EqualValues(t, 40*130, expected(now))
	assert.False(t, p.Redeem(after(19), "a", ticket(0)), "too early")
	assert.False(t, p.Redeem(after(27), "a", ticket(0)), "too late: 20 s, 3 s and 15 %")
	for id := range uint64(20) {
		assert.True(t, p.Redeem(after(26), "a", ticket(id)))
		assert.False(t, p.Redeem(after(26), "a", ticket(id)), "used")
	}
	_, ok := p.RedeemBody(after(26), "b", Interactive, 5)
	assert.False(t, ok, "another account")
	_, ok = p.RedeemBody(after(26), "a", Batch, 5)
	assert.False(t, ok, "another class")
	_, ok = p.RedeemBody(after(26), "a", Interactive, 6)
	assert.False(t, ok, "another request")
	redeemed, ok := p.RedeemBody(after(26), "a", Interactive, 5)
	assert.True(t, ok)
	assert.False(t, p.Redeem(after(26), "a", redeemed), "used")
	assert.EqualValues(t, 19*130, expected(after(26)))
	assert.Zero(t, expected(after(28)), "the others have expired")
	require.True(t, p.Add(after(28), r, Ticket{Issued: after(28), Wait: time.Second, ID: 99}))
	assert.EqualValues(t, 130*21/40, expected(after(28)), "21 of 40 clients have returned")
	assert.True(t, p.Redeem(after(28), "a", Ticket{Issued: now.Add(10 * time.Second), Wait: 15 * time.Second, ID: 7777}),
		"a ticket of another gateway")
}

// TestLimitsOfWaiting checks which limit refuses a request, and that the work of recordings does
// not count against the limits of tokens, which bound memory.
func TestLimitsOfWaiting(t *testing.T) {
	text := func(account string, tokens int64) *Request { return &Request{Account: account, Prompt: tokens} }
	q := NewQueue()
	q.Add(&Request{ID: 1, Account: "a", Prompt: 10 * MaxWaitingTokens, Work: 10 * MaxWaitingTokens})
	assert.Zero(t, q.Tokens())
	assert.Empty(t, q.Full(text("a", MaxAccountTokens)))
	assert.Contains(t, q.Full(text("a", MaxAccountTokens+1)), "have 4194305 prompt tokens, and the maximum for an account")
	for id, account := range []string{"a", "b", "c", "d"} {
		r := text(account, MaxAccountTokens)
		r.ID = uint64(10 + id)
		require.Empty(t, q.Full(r))
		q.Add(r)
	}
	assert.Contains(t, q.Full(text("e", 1)), "have 16777217 prompt tokens, and the maximum is")
	assert.Empty(t, q.Full(&Request{Account: "e", Prompt: 5, Work: 5}))
	for id := range uint64(MaxAccountWaiting) {
		q.Add(&Request{ID: 100 + id, Account: "f", Prompt: 1, Work: 1})
	}
	assert.Contains(t, q.Full(&Request{Account: "f"}), "1024 requests of f wait")
	for id := range uint64(MaxWaiting - MaxAccountWaiting) {
		q.Add(&Request{ID: 10_000 + id, Account: "g", Prompt: 1, Work: 1})
	}
	assert.Contains(t, q.Full(&Request{Account: "e"}), "requests wait, which is the maximum")
}

// TestActiveAccounts checks the number of accounts with requests, and the sum of their weights,
// against a count of the flows after each of many random changes.
func TestActiveAccounts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 3))
	q := NewQueue()
	var waiting, inFlight []*Request
	take := func(list *[]*Request) *Request {
		at := random.IntN(len(*list))
		r := (*list)[at]
		*list = slices.Delete(*list, at, at+1)
		return r
	}
	for id := range uint64(5000) {
		r := &Request{ID: id, Account: string(rune('a' + random.IntN(5))), Class: Class(random.IntN(2)),
			Weight: int64(1 + random.IntN(3)), Prompt: 10}
		switch choice := random.IntN(5); {
		case choice == 0:
			q.Add(r)
			waiting = append(waiting, r)
		case choice == 1 && q.Len() == 0:
			q.Start(r, 10)
			inFlight = append(inFlight, r)
		case choice == 2 && len(waiting) > 0:
			q.Remove(take(&waiting))
		case choice == 3 && len(waiting) > 0:
			next, _ := q.Next(1, func(*Request, []int64) Placement { return Placement{Free: true} })
			waiting = slices.DeleteFunc(waiting, func(other *Request) bool { return other == next })
			inFlight = append(inFlight, next)
		case choice == 4 && len(inFlight) > 0:
			q.End(take(&inFlight), 10, 0)
		}
		accounts, weight := map[string]bool{}, int64(0)
		for _, list := range [][]*Request{waiting, inFlight} {
			for _, r := range list {
				if !accounts[r.Account] {
					accounts[r.Account] = true
					weight += q.active[r.Account].weight
				}
			}
		}
		require.Len(t, q.active, len(accounts))
		require.Equal(t, weight, q.weight)
	}
}
