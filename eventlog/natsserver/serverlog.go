package natsserver

import (
	"fmt"
	"log/slog"
	"strings"
)

// A serverLog passes on what the embedded NATS server has to say, when it
// matters. The first reason for which the server does not start goes to fatal,
// the first for which it takes nothing more to broken.
type serverLog struct {
	to            *slog.Logger
	fatal, broken chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, v ...any) {
	if strings.HasPrefix(format, "Plaintext passwords") {
		return // ours are random and made in memory at each start
	}
	if l.to != nil {
		l.to.Warn("nats: " + fmt.Sprintf(format, v...))
	}
}

func (l serverLog) Errorf(format string, v ...any) {
	if l.to != nil {
		l.to.Error("nats: " + fmt.Sprintf(format, v...))
	}
	if takesNothing(format) {
		tell(l.broken, fmt.Sprintf(format, v...))
	}
}

// takesNothing recognises, by the server's own words, that a stream or all of
// JetStream will store nothing more until the server is started again. Nothing
// else tells.
func takesNothing(format string) bool {
	return strings.Contains(format, "JetStream") && (strings.Contains(format, "critical write error") || strings.Contains(format, "will be DISABLED"))
}

// tell keeps the first reason.
func tell(reasons chan string, reason string) {
	select {
	case reasons <- reason:
	default:
	}
}

func (l serverLog) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	tell(l.fatal, fmt.Sprintf(format, v...))
}
