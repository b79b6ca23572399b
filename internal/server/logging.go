package server

import (
	"context"
	"log/slog"
)

// warnings returns a logger that writes only warnings and errors, for services that log every
// request.
func warnings(logger *slog.Logger) *slog.Logger { return slog.New(warnHandler{logger.Handler()}) }

type warnHandler struct{ slog.Handler }

func (h warnHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}

func (h warnHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return warnHandler{h.Handler.WithAttrs(attrs)}
}

func (h warnHandler) WithGroup(name string) slog.Handler {
	return warnHandler{h.Handler.WithGroup(name)}
}
