package cli

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// switchLevel makes the signal USR1 switch level between configured and debug, until ctx is done.
func switchLevel(ctx context.Context, level *slog.LevelVar, configured slog.Level, logger *slog.Logger) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1)
	go func() {
		defer signal.Stop(signals)
		for {
			select {
			case <-ctx.Done():
				return
			case <-signals:
				next := slog.LevelDebug
				if level.Level() == slog.LevelDebug {
					next = max(configured, slog.LevelInfo)
				}
				if next == slog.LevelDebug {
					level.Set(next)
				}
				logger.Info("the signal USR1 changes the level of the log", "level", next)
				level.Set(next)
			}
		}
	}()
}
