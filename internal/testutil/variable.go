package testutil

import (
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/stretchr/testify/require"
)

// Variable returns the integer in an environment variable. If the variable is not set, it returns
// the argument otherwise. It fails the test for any other value.
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

// Random returns a random number generator. Its seed is the environment variable ANNEAL_SEED or,
// without it, a new seed, and is logged.
func Random(t interface {
	TB
	Logf(format string, args ...any)
}) *rand.Rand {
	t.Helper()
	seed := uint64(Variable(t, "ANNEAL_SEED", int(time.Now().UnixNano())))
	t.Logf("ANNEAL_SEED=%d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}
