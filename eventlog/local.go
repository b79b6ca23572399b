package eventlog

import (
	"context"
	"os"

	"anneal/disk"
	"anneal/eventlog/integrity"
)

// LocalFiles describes the local files that belong to a log: those of the embedded server, or the
// mark of a control plane that uses a NATS cluster.
type LocalFiles struct {
	Space  *disk.Space          // checked before each append; nil is unlimited
	Mark   *integrity.MarkFile  // records the durable position and the running hash; nil records nothing
	Blocks string               // directory of the block files to sync; "" when the server syncs before it acknowledges
	Sync   func(*os.File) error // syncs a block file; nil is fdatasync; for tests
}

// UseFiles sets the log's files. Call it before any other method.
func (l *JetStream) UseFiles(files LocalFiles) {
	l.space, l.mark = files.Space, files.Mark
	if files.Blocks != "" {
		l.disk = newDiskSync(files.Blocks)
		l.disk.mark = files.Mark
		if files.Sync != nil {
			l.disk.sync = files.Sync
		}
	}
}

// WaitDurable returns once every event up to an acknowledged position is on disk.
func (l *JetStream) WaitDurable(ctx context.Context, position uint64) error {
	return l.disk.wait(ctx, position)
}

// CloseFiles closes the block file that is kept open for syncing, unless a sync is running.
func (l *JetStream) CloseFiles() {
	if l.disk != nil {
		l.disk.close()
	}
}
