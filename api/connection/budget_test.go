package connection

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/domain"
)

// TestMemoryForBodiesIsShared checks that a request waits when its account has used its share of
// the memory, that it is rejected when no memory is released in time, and that other accounts are
// not affected.
func TestMemoryForBodiesIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(4000)
		require.NoError(t, b.reserve(t.Context(), "a", 0, 600))
		require.NoError(t, b.reserve(t.Context(), "a", 600, 400), "grows up to its share")
		err := b.reserve(t.Context(), "a", 0, 1)
		require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
		require.Contains(t, err.Error(), "1000 for one account")
		require.Equal(t, domain.OutOfRange, domain.CodeOf(b.reserve(t.Context(), "b", 600, 401)),
			"a body that exceeds a share never fits")
		for _, other := range []string{"b", "c", "d"} {
			require.NoError(t, b.reserve(t.Context(), other, 0, 999), "other accounts have separate shares")
		}
		require.Error(t, b.reserve(t.Context(), "e", 0, 4), "the total is bounded")
		waited := make(chan error, 1)
		go func() { waited <- b.reserve(t.Context(), "a", 0, 500) }()
		synctest.Wait()
		b.release("a", 1000)
		require.NoError(t, <-waited)
		b.release("a", 500)
		for _, other := range []string{"b", "c", "d"} {
			b.release(other, 999)
		}
		require.Zero(t, b.used)
		require.Empty(t, b.accounts)
	})
}

// TestLargeBodiesLeaveMemoryForSmallOnes checks that large bodies of several accounts leave an
// eighth of the memory for small ones.
func TestLargeBodiesLeaveMemoryForSmallOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := NewBudget(64 << 20)
		for _, account := range []string{"a", "b", "c"} {
			require.NoError(t, b.reserve(t.Context(), account, 0, 16<<20))
		}
		require.NoError(t, b.reserve(t.Context(), "d", 0, 8<<20))
		require.Error(t, b.reserve(t.Context(), "d", 0, smallBody+1))
		require.Error(t, b.reserve(t.Context(), "d", smallBody, 1), "has grown beyond a small body")
		require.NoError(t, b.reserve(t.Context(), "d", 0, smallBody))
		require.NoError(t, b.reserve(t.Context(), "e", 0, smallBody))
	})
}

// TestBodyCost checks that bodyCost is an upper bound of the memory that decoding takes, and less
// than seven times the size of a body that consists of text.
func TestBodyCost(t *testing.T) {
	const size = 1 << 20
	list := func(element string) string {
		return `{"prompt":[` + strings.Repeat(element+",", size/(len(element)+1)) + element + `]}`
	}
	var keys strings.Builder
	for i := 0; keys.Len() < size; i++ {
		fmt.Fprintf(&keys, `"%x":0,`, i)
	}
	for name, body := range map[string]string{
		"text":     `{"prompt":"` + strings.Repeat("a", size) + `"}`,
		"digits":   list("0"),
		"tokens":   list("1234"),
		"empty":    list("{}"),
		"objects":  list(`{"":0}`),
		"lists":    list("[]"),
		"texts":    list(`""`),
		"keys":     "{" + keys.String() + `"":0}`,
		"messages": list(`{"role":"user","content":"What would you have for breakfast, if you could?"}`),
	} {
		t.Run(name, func(t *testing.T) {
			data := []byte(body)
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			value, err := wire.Parse(data)
			runtime.GC()
			runtime.ReadMemStats(&after)
			require.NoError(t, err)
			held := int64(after.HeapAlloc) - int64(before.HeapAlloc) + int64(len(data))
			runtime.KeepAlive(value)
			runtime.KeepAlive(data)
			t.Logf("%d bytes of body use %d bytes of memory: %d are reserved", len(data), held, bodyCost(data))
			require.LessOrEqual(t, held, bodyCost(data))
		})
	}
	require.Less(t, bodyCost([]byte(`{"prompt":"`+strings.Repeat("Is it so? Yes, it is. ", size/22)+`"}`)), int64(7*size))
}
