// Package connection bounds what clients use: connections, memory for JSON bodies, and time to send
// a request and to read its response.
package connection

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts and limits of connections. No timeout bounds a whole response, because streams of events
// and completions may last arbitrarily long. Instead, request.Limits bounds each request body and
// each write of a response.
const (
	// time to receive the header of a request, from the start of a new connection
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute // maximum time between two requests on a connection
	MaxHeader     = 64 << 10
)

// NewServer returns an http.Server with the timeouts and limits of this package. Its event streams
// end when ctx is done.
func NewServer(ctx context.Context, h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: MaxHeader,
		ErrorLog:    slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn}
}
