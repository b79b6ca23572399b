package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

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
