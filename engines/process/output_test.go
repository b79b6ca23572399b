package process

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOutput checks that a command's Output receives all that the program writes, and that errors
// still contain the last output.
func TestOutput(t *testing.T) {
	var output bytes.Buffer
	p, err := Start(Command{Args: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, Env: Environment(nil),
		Output: &output})
	require.NoError(t, err)
	<-p.Done()
	require.Equal(t, "out\nerr\n", output.String())
	require.ErrorContains(t, p.Err(), "last output: out\nerr")
}
