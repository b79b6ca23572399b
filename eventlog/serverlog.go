package eventlog

import (
	"fmt"
	"log/slog"
)

// A serverLog passes on what the embedded NATS server has to say, when it
// matters. The first reason for which the server gives up goes to fatal.
type serverLog struct {
	to    *slog.Logger
	fatal chan string
}

func (l serverLog) Noticef(string, ...any) {}
func (l serverLog) Debugf(string, ...any)  {}
func (l serverLog) Tracef(string, ...any)  {}

func (l serverLog) Warnf(format string, v ...any) {
	if l.to != nil {
		l.to.Warn("nats: " + fmt.Sprintf(format, v...))
	}
}

func (l serverLog) Errorf(format string, v ...any) {
	if l.to != nil {
		l.to.Error("nats: " + fmt.Sprintf(format, v...))
	}
}

func (l serverLog) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	select {
	case l.fatal <- fmt.Sprintf(format, v...):
	default:
	}
}
