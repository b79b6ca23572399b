package natsserver

import (
	"fmt"
	"log/slog"
	"strings"
)

// A serverLog is the logger of the embedded NATS server. It forwards warnings and errors to a
// slog.Logger. It sends the first reason why the server cannot start to fatal, and the first reason
// why the server stores no more messages to broken.
type serverLog struct {
	to            *slog.Logger
	fatal, broken chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		return // the configuration is in memory only, so its plaintext passwords are not exposed
	}
	if store, message, ok := strings.Cut(strings.TrimPrefix(format, "Filestore ["), "] "); ok && l.to != nil {
		switch {
		case strings.HasPrefix(message, "Stream state outdated"):
			l.to.Info("the last run did not shut down: NATS rebuilds the index of a stream", "stream", store)
			return
		case strings.HasPrefix(message, "Recovering stream state from index errored") &&
			strings.HasPrefix(fmt.Sprint(v...), "prior state"):
			return // follows the message above
		}
	}
	if l.to != nil {
		l.to.Warn("nats: " + fmt.Sprintf(format, v...))
	}
}

func (l serverLog) Errorf(format string, v ...any) {
	if l.to != nil {
		l.to.Error("nats: " + fmt.Sprintf(format, v...))
	}
	if storesNothing(format) {
		sendFirst(l.broken, fmt.Sprintf(format, v...))
	}
}

// storesNothing reports whether a log message of the NATS server means that a stream, or all of
// JetStream, stores no more messages until the server is restarted. The server reports this only in
// its log.
func storesNothing(format string) bool {
	return strings.Contains(format, "JetStream") &&
		(strings.Contains(format, "critical write error") || strings.Contains(format, "will be DISABLED"))
}

// sendFirst sends reason unless the channel, which has capacity 1, has one already.
func sendFirst(reasons chan string, reason string) {
	select {
	case reasons <- reason:
	default:
	}
}

func (l serverLog) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	sendFirst(l.fatal, fmt.Sprintf(format, v...))
}
