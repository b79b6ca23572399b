package eventlog

import (
	"context"
	"os"

	"anneal/disk"
	"anneal/eventlog/integrity"
)

// LocalFiles are what a log on the embedded server, or a control plane in a cluster, keeps in
// files of its own.
type LocalFiles struct {
	Space  *disk.Space          // appends are refused when it is full; nil is unlimited
	Mark   *integrity.MarkFile  // records what is durable, and the running hash; nil records nothing
	Blocks string               // directory of the block files to sync; "" where servers sync before they acknowledge
	Sync   func(*os.File) error // syncs a block file; nil is fdatasync; for tests
}

// UseFiles sets the log's files, before the log is used.
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

// CloseFiles ends the sync of the block files.
func (l *JetStream) CloseFiles() {
	if l.disk != nil {
		l.disk.close()
	}
}
