package cli

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNilErrorsAreNotLogged checks that no record of the log says error=<nil>.
func TestNilErrorsAreNotLogged(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, logOptions(slog.LevelInfo)))
	var none error
	log.Info("done", "error", none, "files", 0)
	require.NotContains(t, out.String(), "nil")
	require.Contains(t, out.String(), "msg=done files=0")
	log.With("error", none).Warn("failed", "error", errors.New("full"))
	require.NotContains(t, out.String(), "nil")
	require.Contains(t, out.String(), "msg=failed error=full")
}
