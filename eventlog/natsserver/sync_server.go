package natsserver

import (
	"anneal/disk"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/integrity"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
)

// serveSync answers requests on eventlog.SyncSubject: it syncs the log or the requested stream.
// store is the storage directory of the NATS server.
func serveSync(nc *nats.Conn, store string, log *eventlog.JetStream) error {
	_, err := nc.Subscribe(eventlog.SyncSubject, func(m *nats.Msg) {
		stream := string(m.Data)
		if text, ok := strings.CutPrefix(stream, eventlog.Stream+" "); ok {
			go serveLogSync(m, log, text)
			return
		}
		if stream != secrets.BucketStream && stream != idempotency.BucketStream && stream != pubsub.Tasks.Stream {
			_ = m.Respond([]byte("cannot sync a stream that does not exist: " + stream))
			return
		}
		reply := ""
		if err := disk.SyncTree(integrity.BlockDir(store, "CONTROL", stream)); err != nil {
			reply = err.Error()
		}
		_ = m.Respond([]byte(reply))
	})
	if err != nil {
		return fmt.Errorf("eventlog: %w", err)
	}
	return nc.Flush()
}

// serveLogSync replies to m when the log is on disk up to the position that text contains.
func serveLogSync(m *nats.Msg, log *eventlog.JetStream, text string) {
	position, err := strconv.ParseUint(text, 10, 64)
	if err == nil {
		err = log.WaitDurable(context.Background(), position)
	}
	reply := ""
	if err != nil {
		reply = err.Error()
	}
	_ = m.Respond([]byte(reply))
}
