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

// serveSync responds to requests on eventlog.SyncSubject: it syncs the log, or the
// requested stream, whose files are below the directory store.
func serveSync(nc *nats.Conn, store string, log *eventlog.JetStream) error {
	_, err := nc.Subscribe(eventlog.SyncSubject, func(m *nats.Msg) {
		stream := string(m.Data)
		if text, ok := strings.CutPrefix(stream, eventlog.Stream+" "); ok {
			go serveLogSync(m, log, text)
			return
		}
		if stream != secrets.BucketStream && stream != idempotency.BucketStream && stream != pubsub.Tasks.Stream {
			_ = m.Respond([]byte("unknown stream " + stream))
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

// serveLogSync responds to a request when the log is on disk up to the position in text.
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
