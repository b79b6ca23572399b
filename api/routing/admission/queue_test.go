package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// anywhere places each request on replica 0.
func anywhere(r *Request, _ []int64) Placement { return Placement{Uncached: r.Prompt, Free: true} }

// next takes the next request, which must exist.
func next(t require.TestingT, q *Queue) *Request {
	r, _ := q.Next(1, anywhere)
	require.NotNil(t, r)
	return r
}

func TestOrderWithinAnAccount(t *testing.T) {
	q := NewQueue()
	q.Add(&Request{ID: 1, Account: "a", Prompt: 10_000})
	q.Add(&Request{ID: 2, Account: "a", Prompt: 100})
	q.Add(&Request{ID: 3, Account: "a", Prompt: 100})
	// it is shorter by 9,000 tokens, but came 5 s later
	q.Add(&Request{ID: 4, Account: "a", Prompt: 1000, Arrival: 5 * time.Second})
	var order []uint64
	for q.Len() > 0 {
		order = append(order, next(t, q).ID)
	}
	assert.Equal(t, []uint64{2, 3, 1, 4}, order)
	assert.Zero(t, q.Tokens())
	none, _ := q.Next(1, anywhere)
	assert.Nil(t, none)
}

// TestShares checks that accounts that always have waiting requests get tokens in proportion to
// their weights, and classes in proportion to theirs, also when answers are longer than expected.
func TestShares(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 7))
	q := NewQueue()
	type flowID struct {
		account string
		class   Class
	}
	ids := map[flowID]int64{{"a", Interactive}: 1, {"b", Interactive}: 2, {"c", Interactive}: 4, {"a", Batch}: 1,
		{"d", Batch}: 1}
	id := uint64(0)
	add := func(f flowID) {
		id++
		q.Add(&Request{ID: id, Account: f.account, Class: f.class, Weight: ids[f], Prompt: 1 + random.Int64N(8000),
			Answer: 200})
	}
	for f := range ids {
		for range 20 {
			add(f)
		}
	}
	used, classUsed, total := map[flowID]int64{}, map[Class]int64{}, int64(0)
	var flying []*Request
	for range 60_000 {
		r := next(t, q)
		add(flowID{r.Account, r.Class})
		if flying = append(flying, r); len(flying) < 64 {
			continue
		}
		ended := flying[0]
		flying = flying[1:]
		answer := random.Int64N(600)
		if ended.Account == "b" {
			answer *= 3 // longer than expected
		}
		q.End(ended, ended.Prompt, answer)
		cost := ended.cost(ended.Prompt, answer)
		used[flowID{ended.Account, ended.Class}] += cost
		classUsed[ended.Class] += cost
		total += cost
	}
	assert.InDelta(t, 0.9, float64(classUsed[Interactive])/float64(total), 0.01)
	for f, weight := range ids {
		sum := int64(7)
		if f.class == Batch {
			sum = 2
		}
		assert.InEpsilon(t, float64(weight)/float64(sum), float64(used[f])/float64(classUsed[f.class]), 0.01, "%v", f)
	}
}

// TestIdleAccountsSaveNothing checks that an account that was idle does not get more than its share
// afterwards.
func TestIdleAccountsSaveNothing(t *testing.T) {
	q := NewQueue()
	for i := range uint64(1000) {
		q.Add(&Request{ID: i, Account: "busy", Prompt: 100})
	}
	for range 500 {
		q.End(next(t, q), 100, 0)
	}
	for i := range uint64(100) {
		q.Add(&Request{ID: 2000 + i, Account: "idle", Prompt: 100})
	}
	counts := map[string]int{}
	for range 100 {
		r := next(t, q)
		counts[r.Account]++
		q.End(r, 100, 0)
	}
	assert.InDelta(t, 50, counts["idle"], 1)
}

// TestIdleFlowsAreForgotten checks that the memory of a queue does not grow with the number of
// accounts that it has seen.
func TestIdleFlowsAreForgotten(t *testing.T) {
	for _, inFlight := range []int{0, 1} {
		q := NewQueue()
		if inFlight > 0 { // the queue is never idle
			q.Add(&Request{Account: "busy", Prompt: 1})
			next(t, q)
		}
		for i := range uint64(3 * maxFlows) {
			q.Add(&Request{ID: i, Account: fmt.Sprint(i), Prompt: 100})
			q.End(next(t, q), 100, 0)
		}
		assert.LessOrEqual(t, len(q.flows), maxFlows)
	}
}

// TestRequestsWaitForTheirReplica checks that a request whose replica has too much work does not
// hold up later requests that go to another replica, and that planned has its tokens for these.
func TestRequestsWaitForTheirReplica(t *testing.T) {
	q := NewQueue()
	q.Add(&Request{ID: 1, Account: "a", Prompt: 10})
	q.Add(&Request{ID: 2, Account: "a", Prompt: 20})
	place := func(r *Request, planned []int64) Placement {
		if planned[0] < planned[1]+5 {
			return Placement{Replica: 0, Uncached: r.Prompt}
		}
		return Placement{Replica: 1, Uncached: r.Prompt, Free: true}
	}
	r, placement := q.Next(2, place)
	require.NotNil(t, r)
	assert.EqualValues(t, 2, r.ID)
	assert.Equal(t, 1, placement.Replica)
	requests, _ := q.Waiting("a")
	assert.Equal(t, 1, requests)
	r, _ = q.Next(2, place)
	assert.Nil(t, r, "the only replica that is left for it takes no more")
}

func TestCapacity(t *testing.T) {
	q := NewQueue()
	add := func(account string, n int) (last *Request) {
		for range n {
			last = &Request{ID: uint64(q.Len()), Account: account, Prompt: 1}
			q.Add(last)
			next(t, q)
		}
		return last
	}
	big := add("big", 10)
	assert.Equal(t, Capacity{alonePending, 64}, q.Capacity(big, 64))
	small := add("small", 1)
	assert.Equal(t, Capacity{sharedPending, 64}, q.Capacity(big, 64))
	assert.Equal(t, Capacity{smallPending, 80}, q.Capacity(small, 64))
}

// TestQueueKeepsRequests runs random steps, and checks that each request leaves the queue once, and
// that the counts of the queue are right.
func TestQueueKeepsRequests(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		q, id := NewQueue(), uint64(0)
		waiting, flying := map[uint64]*Request{}, []*Request{}
		for range rapid.IntRange(0, 80).Draw(t, "steps") {
			switch rapid.IntRange(0, 4).Draw(t, "step") {
			case 0, 1:
				id++
				r := &Request{ID: id, Account: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "account"),
					Class: Class(rapid.IntRange(0, 1).Draw(t, "class")), Prompt: rapid.Int64Range(0, 9).Draw(t, "prompt"),
					Arrival: time.Duration(id) * time.Millisecond}
				waiting[id] = r
				q.Add(r)
			case 2:
				free := rapid.IntRange(0, 1).Draw(t, "free")
				r, _ := q.Next(2, func(r *Request, _ []int64) Placement {
					return Placement{Replica: int(r.ID % 2), Uncached: r.Prompt, Free: int(r.ID%2) == free}
				})
				if r == nil {
					for _, left := range waiting {
						require.NotEqual(t, free, int(left.ID%2), "a replica was free")
					}
					continue
				}
				require.Contains(t, waiting, r.ID)
				delete(waiting, r.ID)
				flying = append(flying, r)
			case 3:
				if len(flying) > 0 {
					q.End(flying[0], 3, 5)
					flying = flying[1:]
				}
			case 4:
				if len(waiting) > 0 {
					first := slices.Min(slices.Collect(maps.Keys(waiting)))
					q.Remove(waiting[first])
					q.Remove(waiting[first]) // a repetition changes nothing
					delete(waiting, first)
				}
			}
			tokens := int64(0)
			for _, r := range waiting {
				tokens += r.Prompt
			}
			require.Equal(t, len(waiting), q.Len())
			require.Equal(t, tokens, q.Tokens())
			require.Equal(t, len(flying), q.total)
		}
		for len(waiting) > 0 {
			delete(waiting, next(t, q).ID)
		}
		require.Zero(t, q.Len())
	})
}
