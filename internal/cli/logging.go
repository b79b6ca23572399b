package cli

import (
	"log/slog"
	"os"
)

// newLogger returns the logger of a server or an agent, with the level in the variable ANNEAL_LOG.
// It also sets the default logger of package slog, for packages that get no logger.
func newLogger() *slog.Logger {
	level := slog.LevelInfo
	if err := level.UnmarshalText([]byte(os.Getenv("ANNEAL_LOG"))); err != nil {
		level = slog.LevelInfo
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, logOptions(level)))
	slog.SetDefault(logger)
	return logger
}

func logOptions(level slog.Level) *slog.HandlerOptions {
	return &slog.HandlerOptions{Level: level, ReplaceAttr: withoutNil}
}

// withoutNil leaves out attributes whose value is nil, such as the error of a successful operation.
func withoutNil(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindAny && a.Value.Any() == nil {
		return slog.Attr{}
	}
	return a
}

// newErrorLogger returns a logger that writes only errors.
func newErrorLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, logOptions(slog.LevelError)))
}
