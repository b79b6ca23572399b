// Package connection bounds the resources that clients use: connections, the memory of JSON bodies,
// and the time to send a request and to read its response.
package connection

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Timeouts and limits of connections. No timeout bounds a whole response, since streams of events
// and completions have no maximum duration: Limits bound request bodies and each write of a
// response.
const (
	headerTimeout = 10 * time.Second // to read the header of a request; it begins at the start of a new connection
	idleTimeout   = 2 * time.Minute  // maximum time between two requests of a connection
	MaxHeader     = 64 << 10
)

// NewServer returns an http.Server with the timeouts and limits of the interface. Its streams end
// when ctx is done.
func NewServer(ctx context.Context, h http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: MaxHeader,
		ErrorLog:    slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx }, ConnContext: withConn}
}
