package agent

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/workers/protocol"
)

func newTestLog(env map[string]string) *jobLog {
	l := &jobLog{}
	l.secrets, l.longest = redactor(env, "/var/worker/")
	return l
}

// TestLogLines checks that the log has the lines of the output however it is divided into writes, and
// that it has no secret, no control characters and no paths of the machine.
func TestLogLines(t *testing.T) {
	env := map[string]string{"TOKEN": "s3cret-token", "CERT": "-----BEGIN\nabcdefgh\nijklmnop\n", "N": "1"}
	output := "epoch 1\r 10%\r100%\ntoken s3cret-token!\n\x1b[31mred\nkey abcdefgh of /var/worker/job/x\nlast \xff\n"
	want := "100%\ntoken [redacted]!\n\\u001b[31mred\nkey [redacted] of job/x\nlast \uFFFD\n"
	for size := 1; size <= len(output); size++ {
		l := newTestLog(env)
		for rest := output; rest != ""; {
			n, err := l.Write([]byte(rest[:min(size, len(rest))]))
			require.NoError(t, err)
			rest = rest[n:]
		}
		require.Equal(t, want, string(l.kept), "writes of %d bytes", size)
	}
}

// TestLongLines checks that a line without an end is divided, but no secret in it.
func TestLongLines(t *testing.T) {
	const secret = "s3cret-token"
	l := newTestLog(map[string]string{"TOKEN": secret})
	line := strings.Repeat("x", maxLogLine-5) + secret + strings.Repeat("y", maxLogLine)
	for rest := line; rest != ""; {
		n := min(len(rest), 100)
		_, err := l.Write([]byte(rest[:n]))
		require.NoError(t, err)
		rest = rest[n:]
	}
	_, err := l.Write([]byte("\n"))
	require.NoError(t, err)
	text := strings.ReplaceAll(string(l.kept), "\n", "")
	require.Equal(t, strings.Repeat("x", maxLogLine-5)+"[redacted]"+strings.Repeat("y", maxLogLine), text)
	require.Less(t, len(l.partial), maxLogLine)
}

// TestLogLimit checks that the log keeps its newest lines.
func TestLogLimit(t *testing.T) {
	l := newTestLog(nil)
	const lines = 100_000
	for i := range lines {
		fmt.Fprintf(l, "%099d\n", i)
	}
	require.LessOrEqual(t, len(l.kept), 2*protocol.MaxLog)
	kept := string(newestLines(l.kept))
	require.LessOrEqual(t, len(kept), protocol.MaxLog)
	require.Greater(t, len(kept), protocol.MaxLog-100)
	require.True(t, strings.HasSuffix(kept, fmt.Sprintf("%099d\n", lines-1)))
	require.Regexp(t, "^0", kept)
}
