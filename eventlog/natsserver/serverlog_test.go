package natsserver

import (
	"bytes"
	"errors"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRestartsAfterACrashAreNoWarnings checks that the messages of NATS about an index that it
// rebuilds after a crash become one message in the terms of an operator, and that other warnings
// remain.
func TestRestartsAfterACrashAreNoWarnings(t *testing.T) {
	var logged bytes.Buffer
	l := serverLog{to: slog.New(slog.NewTextHandler(&logged, nil))}
	l.Warnf("Filestore [EVENTS] Stream state outdated, last block has additional entries, will rebuild")
	l.Warnf("Filestore [EVENTS] Recovering stream state from index errored: %v", errors.New("prior state file"))
	require.Regexp(t, `^time=\S+ level=INFO msg="the last run did not shut down cleanly: the NATS server rebuilds `+
		`the index of a stream, which can take some time" stream=EVENTS\n$`, logged.String())
	logged.Reset()
	l.Warnf("Filestore [EVENTS] Recovering stream state from index errored: %v", errors.New("corrupt state file"))
	l.Warnf("Filestore [EVENTS] Stream state encountered internal inconsistency on recover")
	require.Equal(t, 2, bytes.Count(logged.Bytes(), []byte("level=WARN")), logged.String())
}
