package cli

import (
	"log/slog"
	"os"
)

// newLogger returns the logger of a server or an agent. ANNEAL_LOG sets its level.
func newLogger() *slog.Logger {
	level := slog.LevelInfo
	if err := level.UnmarshalText([]byte(os.Getenv("ANNEAL_LOG"))); err != nil {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// newErrorLogger returns a logger that only shows errors.
func newErrorLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
