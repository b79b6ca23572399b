package natsserver

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
)

// dropUnreadableConsumers removes the states of consumers that the server
// could not read: it would refuse to make those consumers again, and a count
// that is damaged could take all memory. Such a consumer begins at the first
// event, and its handler finds done what is done. A state that can be read and
// is wrong leaves out events: what is undone is looked up when a server starts.
func dropUnreadableConsumers(store string, log *slog.Logger) error {
	states, err := filepath.Glob(filepath.Join(store, "jetstream", "*", "streams", "*", "obs", "*", "o.dat"))
	if err != nil {
		return err
	}
	for _, path := range states {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("eventlog: the state of a consumer cannot be read: %w", err)
		}
		if len(content) == 0 || readableConsumer(content) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("eventlog: the damaged state of a consumer cannot be removed: %w", err)
		}
		log.Warn("the state of a consumer was damaged: it begins anew", "file", path)
	}
	return nil
}

// readableConsumer tells whether nats-server 2.15 reads a consumer's state: two
// bytes of header, four positions, and then what is pending and what was
// delivered again, as variable-length integers.
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
	var floor [4]uint64 // acknowledged by all before: the consumer's count, the stream's position; delivered likewise
	for i := range floor {
		n, ok := next()
		if !ok || n >= 1<<63 {
			return false
		}
		floor[i] = n
	}
	fields := []int{2 + int(version-1), 2} // of each that is pending, and of each that was delivered again
	for kind, width := range fields {
		n, ok := next()
		if !ok || n > uint64(len(rest)) {
			return false
		}
		if kind == 0 && n > 0 { // the time that the others are counted from
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
