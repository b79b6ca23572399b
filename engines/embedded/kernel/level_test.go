package kernel

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestArithmetic checks that levels have different arithmetic, which plain Go has by architecture.
func TestArithmetic(t *testing.T) {
	level := Level()
	t.Cleanup(func() { require.NoError(t, SetLevel(level)) })
	seen := map[string]bool{}
	for _, one := range Levels() {
		require.NoError(t, SetLevel(one))
		require.False(t, seen[Arithmetic()], Arithmetic())
		seen[Arithmetic()] = true
		if one == "go" {
			require.Contains(t, Arithmetic(), runtime.GOARCH)
		} else {
			require.Equal(t, one, Arithmetic())
		}
	}
}
