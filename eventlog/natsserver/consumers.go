package natsserver

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// dropUnreadableConsumers removes the state files of consumers that the NATS server could not read.
// The server would refuse to create such a consumer again, and a damaged count in the file could
// make it run out of memory. A consumer without a state file begins at the first event, which is
// safe because handlers are idempotent.
//
// A damaged state file that the server can still read may make the consumer skip events. Therefore
// the control plane also looks for pending work when it starts.
func dropUnreadableConsumers(store string, log *slog.Logger) error {
	states, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", "*", "obs", "*", "o.dat"))
	if err != nil {
		return err
	}
	for _, path := range states {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("read the state file of a NATS consumer: %w", err)
		}
		if len(content) == 0 || readableConsumer(content) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("remove the damaged state file of a NATS consumer: %w", err)
		}
		log.Warn("removed the damaged state file of a NATS consumer: its handler receives all events again, which has no "+
			"effect", "file", path)
	}
	return nil
}

// readableConsumer reports whether nats-server 2.15 can read the content of a consumer's state
// file: two bytes of header, then four positions, the pending messages and the redelivered messages
// as variable-length integers.
func readableConsumer(content []byte) bool {
	if len(content) < 2 || content[0] != 22 || content[1] != 1 && content[1] != 2 {
		return false
	}
	version, rest := content[1], content[2:]
	next := func() (n uint64, ok bool) {
		n, size := binary.Uvarint(rest)
		if size <= 0 {
			return 0, false
		}
		rest = rest[size:]
		return n, true
	}
	// Four positions: that of the last acknowledged message as a sequence of the consumer and as a
	// sequence of the stream, and the same two of the last delivered message.
	var floor [4]uint64
	for i := range floor {
		n, ok := next()
		if !ok || n >= 1<<63 {
			return false
		}
		floor[i] = n
	}
	fields := []int{2 + int(version-1), 2} // number of integers for each pending message, and for each redelivered one
	for kind, width := range fields {
		n, ok := next()
		if !ok || n > uint64(len(rest)) {
			return false
		}
		if kind == 0 && n > 0 { // base time, to which the messages' times are relative
			if _, ok := next(); !ok {
				return false
			}
		}
		for i := range int(n) * width {
			n, ok := next()
			if !ok || kind == 0 && i%width == 0 && n+floor[1] == 0 {
				return false
			}
		}
	}
	return true
}
