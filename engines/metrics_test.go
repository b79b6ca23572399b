package engines_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

func TestRoundMetrics(t *testing.T) {
	values := map[string]float64{"a": -8.3e-17, "b": 1e-13, "c": math.Copysign(0, -1), "d": -2e-12, "e": 0.5}
	engines.RoundMetrics(values)
	require.Equal(t, map[string]float64{"a": 0, "b": 0, "c": 0, "d": -2e-12, "e": 0.5}, values)
	require.False(t, math.Signbit(values["a"]) || math.Signbit(values["c"]), "no negative zero")
}
