package cli

import (
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/internal/usage"
)

// Formats of the log.
const (
	logText = "text"
	logJSON = "json"
)

var logLevels = []string{"debug", "info", "warn", "error"}

// logFlags are the flags of the log of a command that runs for a long time.
type logFlags struct{ format, level string }

func (l *logFlags) add(f *pflag.FlagSet) {
	f.StringVar(&l.format, "log-format", logText, "format of the log on standard error: text or json; in JSON, durations "+
		"are in seconds")
	f.StringVar(&l.level, "log-level", "info", "least level of the records in the log: debug, info, warn or error; the "+
		"signal USR1 switches a running process to debug, and the next USR1 back")
}

func (l *logFlags) check() error {
	var v domain.Violations
	v.Require(l.format == logText || l.format == logJSON, "--log-format", "%s",
		domain.OneOfRule(l.format, []string{logText, logJSON}))
	_, err := parseLevel(l.level)
	v.Require(err == nil, "--log-level", "%s", domain.OneOfRule(l.level, logLevels))
	if err := v.Err(); err != nil {
		return usage.Error{Err: err}
	}
	return nil
}

// parseLevel returns the level with a name in logLevels, in upper or lower case.
func parseLevel(name string) (level slog.Level, err error) {
	err = level.UnmarshalText([]byte(name))
	return level, err
}

// logger returns the logger of the process, and makes it the default logger of package slog, for
// packages that get no logger. Until ctx is done, the signal USR1 switches between its level and debug.
func (l *logFlags) logger(ctx context.Context) *slog.Logger {
	configured, _ := parseLevel(l.level) // check has validated it
	level := &slog.LevelVar{}
	level.Set(configured)
	logger := slog.New(newLogHandler(os.Stderr, cmp.Or(l.format, logText), level))
	slog.SetDefault(logger)
	switchLevel(ctx, level, configured, logger)
	return logger
}

// newLogHandler returns a handler that writes records from a level on in a format.
func newLogHandler(w io.Writer, format string, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: withoutNil}
	if format == logText {
		return slog.NewTextHandler(w, options)
	}
	options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration {
			return slog.Float64(a.Key, a.Value.Duration().Seconds())
		}
		return withoutNil(groups, a)
	}
	return slog.NewJSONHandler(w, options)
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
	return slog.New(newLogHandler(os.Stderr, logText, slog.LevelError))
}
