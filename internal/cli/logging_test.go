package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestNilErrorsAreNotLogged checks that no record of the log says error=<nil>.
func TestNilErrorsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newLogHandler(&out, logText, slog.LevelInfo))
	var none error
	log.Info("done", "error", none, "files", 0)
	require.NotContains(t, out.String(), "nil")
	require.Contains(t, out.String(), "msg=done files=0")
	log.With("error", none).Warn("failed", "error", errors.New("full"))
	require.NotContains(t, out.String(), "nil")
	require.Contains(t, out.String(), "msg=failed error=full")
}

// TestDefaultLoggerHasTheFormatOfTheServer checks that warnings of packages without a logger have
// the same format as those of the server.
func TestDefaultLoggerHasTheFormatOfTheServer(t *testing.T) {
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	stderr, before := os.Stderr, slog.Default()
	os.Stderr = file
	t.Cleanup(func() {
		os.Stderr = stderr
		slog.SetDefault(before)
	})
	(&logFlags{level: "info"}).logger(t.Context())
	slog.Warn("snapshot skipped", "snapshot", "a", "nothing", nil)
	require.NoError(t, file.Close())
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	require.Regexp(t, `^time=\S+ level=WARN msg="snapshot skipped" snapshot=a\n$`, string(text))
}

// TestJSONLog checks that each record of the JSON format is a JSON object, with durations in seconds
// and without nil.
func TestJSONLog(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(newLogHandler(&out, logJSON, slog.LevelInfo))
	var none error
	log.Info("done", "error", none, "took", 1500*time.Millisecond, "cause", errors.New("a \"quoted\" one"))
	log.Debug("not written")
	var record map[string]any
	require.NoError(t, json.Unmarshal(out.Bytes(), &record))
	delete(record, "time")
	require.Equal(t, map[string]any{"level": "INFO", "msg": "done", "took": 1.5, "cause": `a "quoted" one`}, record)
}

// TestSignalSwitchesTheLevel checks that the signal USR1 switches to debug and back.
func TestSignalSwitchesTheLevel(t *testing.T) {
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	logger := (&logFlags{format: logText, level: "error"}).logger(t.Context())
	for _, debug := range []bool{true, false, true} {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGUSR1))
		require.Eventually(t, func() bool { return logger.Enabled(t.Context(), slog.LevelDebug) == debug },
			10*time.Second, time.Millisecond)
	}
}

// TestInvalidLogFlags checks that the errors of the flags name the valid values.
func TestInvalidLogFlags(t *testing.T) {
	err := (&logFlags{format: "xml", level: "verbose"}).check()
	require.ErrorContains(t, err, "--log-format")
	require.ErrorContains(t, err, "text, json")
	require.ErrorContains(t, err, "--log-level")
	require.ErrorContains(t, err, "debug, info, warn, error")
}
