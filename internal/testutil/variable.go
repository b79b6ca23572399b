package testutil

import (
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
)

// Variable returns the number in an environment variable, or otherwise when it is not set. Any other
// text fails the test.
func Variable(t TB, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	require.NoErrorf(t, err, "%s is not an integer", name)
	return n
}

// Random returns a random number generator whose seed is in the environment variable ANNEAL_SEED, or
// new. It logs the seed.
func Random(t interface {
	TB
	Logf(format string, args ...any)
}) *rand.Rand {
	t.Helper()
	seed := uint64(Variable(t, "ANNEAL_SEED", int(time.Now().UnixNano())))
	t.Logf("ANNEAL_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
