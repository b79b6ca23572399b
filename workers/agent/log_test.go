package agent

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/workers/protocol"
)

func newTestLog(env map[string]string) *jobLog {
	l := &jobLog{}
	l.lines.redactor = newRedactor(env, "/var/worker/")
	return l
}

// TestLogLines checks that the log has the lines of the output however it is divided into writes,
// and that it has no secret, no control characters and no paths of the machine.
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

// TestLongLines checks that a line without an end is divided, and that a secret across the division
// is replaced.
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
}

// TestOverlappingSecrets checks that no part of a secret remains, wherever a long line is divided:
// if secrets overlap, if one begins with another, or if a carriage return cuts one off.
func TestOverlappingSecrets(t *testing.T) {
	env := map[string]string{"A": "abcdefgh", "B": "efghijkl", "C": "abcd", "D": "klmn\rklmnopq", "E": "00000"}
	const all = "abcdefghijklmn\rklmnopq"
	for before := maxLogLine - 30; before < maxLogLine+30; before++ {
		l := newTestLog(env)
		text := strings.Repeat("x", before) + all + strings.Repeat("y", maxLogLine+100)
		for _, part := range append([]string{text[:before]}, strings.Split(text[before:before+60], "")...) {
			_, _ = l.Write([]byte(part))
		}
		_, _ = l.Write([]byte(text[before+60:] + "\n"))
		require.LessOrEqual(t, len(l.lines.partial), maxLogLine+l.lines.longest)
		require.Equal(t, strings.Repeat("x", before)+"[redacted]"+strings.Repeat("y", maxLogLine+100),
			strings.ReplaceAll(string(l.kept), "\n", ""))
	}
	l := newTestLog(env)
	for range 3 * maxLogLine / 1000 {
		_, _ = l.Write([]byte(strings.Repeat("0", 1000)))
	}
	require.LessOrEqual(t, len(l.lines.partial), maxLogLine+l.lines.longest)
	_, _ = l.Write([]byte("0 12\nabcdefghijkl\n"))
	require.Equal(t, " 12", strings.NewReplacer("\n", "", "[redacted]", "").Replace(string(l.kept)))
	for zeros := maxLogLine; zeros < maxLogLine+30; zeros++ { // the whole line is secret, so it is divided within a secret
		l := newTestLog(env)
		_, _ = l.Write([]byte(strings.Repeat("0", zeros) + "yyyyyyyyyy"))
		_, _ = l.Write([]byte("\n"))
		require.Equal(t, "yyyyyyyyyy", strings.NewReplacer("\n", "", "[redacted]", "").Replace(string(l.kept)))
	}
}

// loggingAttempt returns an attempt that stores its log on a server.
func loggingAttempt(t *testing.T, handler http.HandlerFunc) *attempt {
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	a := &attempt{agent: &Agent{files: newTransfer(nil)}, log: slog.New(slog.DiscardHandler),
		assignment: protocol.TrainAssignment{LogURL: server.URL + "/log", EarlierLogURL: server.URL + "/earlier"}}
	a.life, a.end = context.WithCancel(t.Context())
	a.work, a.halt = context.WithCancelCause(a.life)
	a.joblog = newJobLog(a, t.Context())
	t.Cleanup(func() { a.joblog.cancel(); a.agent.work.Wait() })
	return a
}

// TestEndOfTheLogIsStored checks that the end of a log is stored after its attempt was dropped,
// that a failed upload is repeated, and that the stored log begins with the log of earlier
// attempts.
func TestEndOfTheLogIsStored(t *testing.T) {
	for name, c := range map[string]struct {
		earlier int // status of the response to the request for the earlier log
		want    string
	}{"joined": {http.StatusOK, "earlier\n"}, "none": {http.StatusNotFound, ""}, "expired": {http.StatusForbidden, ""}} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int64
			var stored atomic.Value
			a := loggingAttempt(t, func(w http.ResponseWriter, r *http.Request) {
				data, _ := io.ReadAll(r.Body)
				switch n := requests.Add(1); {
				case n == 1, n == 3:
					w.WriteHeader(http.StatusServiceUnavailable)
				case r.Method == http.MethodGet:
					w.WriteHeader(c.earlier)
					_, _ = io.WriteString(w, "earlier\n")
				default:
					stored.Store(string(data))
				}
			})
			_, _ = a.joblog.Write([]byte("begin"))
			a.joblog.ended(nil, false)
			a.end()
			a.joblog.close(false)
			require.Regexp(t, "^"+c.want+`begin\n\S+ the training is complete\n$`, stored.Load())
		})
	}
}

// TestUnwantedLog checks that an attempt that is over does not store its log.
func TestUnwantedLog(t *testing.T) {
	var requests atomic.Int64
	a := loggingAttempt(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	_, _ = a.joblog.Write([]byte("line\n"))
	a.joblog.close(true)
	require.Zero(t, requests.Load())
}

// TestUploadsOfALog checks that a log without new lines is not uploaded, and that the uploads of a
// growing log stay within logRate.
func TestUploadsOfALog(t *testing.T) {
	var requests atomic.Int64
	a := loggingAttempt(t, func(http.ResponseWriter, *http.Request) { requests.Add(1) })
	a.joblog.close(false)
	require.Zero(t, requests.Load())
	require.Equal(t, 5*time.Second, uploadPause(0))
	require.Equal(t, 5*time.Second, uploadPause(5*logRate))
	require.Equal(t, 64*time.Second, uploadPause(protocol.MaxLog))
	require.Equal(t, 64*time.Second, uploadPause(2*protocol.MaxLog))
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
