package cli

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLogs checks that logs shows the log of a job of each kind, and with --follow each line once until
// the job ends.
func TestLogs(t *testing.T) {
	var reads atomic.Int64
	server := func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, ":getTrainerLogsEndpoint"):
			fmt.Fprintf(w, `{"signedUrl":"http://%s/file"}`, r.Host)
		case r.URL.Path == "/file":
			fmt.Fprint(w, "one\ntwo\n")
			switch reads.Add(1) {
			case 1:
			case 2:
				fmt.Fprint(w, "three\n")
			default: // the end is stored after the job has ended
				fmt.Fprint(w, "three\nfour\n")
			}
		case reads.Load() == 0:
			fmt.Fprint(w, `{"state":"JOB_STATE_RUNNING"}`)
		default:
			fmt.Fprint(w, `{"state":"JOB_STATE_COMPLETED"}`)
		}
	}
	for _, kind := range []string{"sft", "dpo", "rft", "rlor"} {
		reads.Store(0)
		out, _, err := runOutput(t, server, kind, "logs", "j")
		require.NoError(t, err)
		require.Equal(t, "one\ntwo\n", out)
	}
	reads.Store(0)
	out, _, err := runOutput(t, server, "sft", "logs", "j", "--follow")
	require.NoError(t, err)
	require.Equal(t, "one\ntwo\nthree\nfour\n", out)
	out, _, err = runOutput(t, server, "sft", "logs", "j", "-o", "json")
	require.NoError(t, err)
	require.JSONEq(t, `{"log": "one\ntwo\nthree\nfour\n"}`, out)
	_, _, err = runOutput(t, server, "sft", "logs", "j", "-o", "json", "--follow")
	require.ErrorContains(t, err, "leave out -o json")
}

func TestNewLines(t *testing.T) {
	for _, c := range []struct{ shown, log, want string }{
		{"", "a\nb\n", "a\nb\n"}, {"a\nb\n", "a\nb\nc\n", "c\n"}, {"a\nb\n", "a\nb\n", ""},
		{strings.Repeat("a\n", 9000) + "b\n", strings.Repeat("a\n", 4000) + "b\nc\n", "c\n"},
	} {
		require.Equal(t, c.want, string(newLines([]byte(c.shown), []byte(c.log))))
	}
}
