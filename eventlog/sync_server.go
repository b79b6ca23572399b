package eventlog

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// serveSync answers on syncSubject.
func serveSync(nc *nats.Conn, store string, log *JetStream) error {
	_, err := nc.Subscribe(syncSubject, func(m *nats.Msg) {
		stream := string(m.Data)
		if text, ok := strings.CutPrefix(stream, Stream+" "); ok {
			go serveLogSync(m, log, text)
			return
		}
		if stream != keysStream && stream != answersStream && stream != Tasks.Stream {
			_ = m.Respond([]byte("no such stream"))
			return
		}
		answer := ""
		if err := syncTree(blockDir(store, "CONTROL", stream)); err != nil {
			answer = err.Error()
		}
		_ = m.Respond([]byte(answer))
	})
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	return nc.Flush()
}

// serveLogSync answers once the log is on disk up to a position.
func serveLogSync(m *nats.Msg, log *JetStream, text string) {
	position, err := strconv.ParseUint(text, 10, 64)
	if err == nil {
		err = log.WaitDurable(context.Background(), position)
	}
	answer := ""
	if err != nil {
		answer = err.Error()
	}
	_ = m.Respond([]byte(answer))
}
