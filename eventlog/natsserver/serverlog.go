package natsserver

import (
	"fmt"
	"log/slog"
	"strings"
)

// A serverLog is the logger of the embedded NATS server. It forwards the server's warnings and
// errors to a slog.Logger. The channel fatal receives the first message that the server cannot
// start, and broken the first message that it stops storing messages.
type serverLog struct {
	to            *slog.Logger
	fatal, broken chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		return // passwords are no risk in this configuration, which exists only in memory
	}
	if store, message, ok := strings.Cut(strings.TrimPrefix(format, "Filestore ["), "] "); ok && l.to != nil {
		switch {
		case strings.HasPrefix(message, "Stream state outdated"):
			l.to.Info("the last run did not shut down cleanly: the NATS server rebuilds the index of a stream, which can "+
				"take some time", "stream", store)
			return
		case strings.HasPrefix(message, "Recovering stream state from index errored") &&
			strings.HasPrefix(fmt.Sprint(v...), "prior state"):
			return // the message only repeats the warning "Stream state outdated"
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
// JetStream, stores no messages until the server is restarted. The server reports that only in its
// log.
func storesNothing(format string) bool {
	return strings.Contains(format, "JetStream") &&
		(strings.Contains(format, "critical write error") || strings.Contains(format, "will be DISABLED"))
}

// sendFirst sends reason to the channel unless it already has one. The channel has the capacity 1.
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
