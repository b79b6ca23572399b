package fair

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestShares checks that accounts that always have requests get tokens in proportion to their weights.
func TestShares(t *testing.T) {
	var q Queue
	weights := map[string]int{"a": 0, "b": 2, "c": 5}
	accounts, served := map[string]*Account{}, map[string]int{}
	for _, name := range []string{"a", "b", "c"} {
		accounts[name] = q.Join(name, weights[name])
	}
	for range 8000 {
		next := "a"
		for _, name := range []string{"b", "c"} {
			if accounts[name].Before(accounts[next]) {
				next = name
			}
		}
		accounts[next].Charge(100)
		served[next]++
	}
	require.InDelta(t, 1000, served["a"], 2)
	require.InDelta(t, 2000, served["b"], 2)
	require.InDelta(t, 5000, served["c"], 2)
}

// TestIdle checks that an account neither saves time while it has no requests, nor loses its debt when it
// leaves and comes back at once, and that idle accounts need no memory.
func TestIdle(t *testing.T) {
	var q Queue
	a, b := q.Join("a", 1), q.Join("b", 1)
	a.Charge(100)
	b.Charge(1000)
	q.Leave(b)
	b = q.Join("b", 1)
	require.True(t, a.Before(b), "b has used more")
	a.Charge(5000)
	late := q.Join("late", 1)
	require.False(t, late.Before(b), "it has no claim to earlier time")
	require.True(t, late.Before(a))
	for _, one := range []*Account{a, b, late} {
		q.Leave(one)
	}
	require.Empty(t, q.accounts)
	fresh, other := q.Join("fresh", 1), q.Join("a", 1)
	require.False(t, fresh.Before(other))
	require.False(t, other.Before(fresh))
}
