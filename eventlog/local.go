package eventlog

import (
	"context"
	"os"

	"anneal/disk"
	"anneal/eventlog/integrity"
)

// LocalFiles are the local files that belong to a log: the block files of the embedded NATS server,
// or only the high-water mark of a control plane that uses a NATS cluster.
type LocalFiles struct {
	Space *disk.Space         // free space of the disk, checked before each append; nil checks nothing
	Mark  *integrity.MarkFile // high-water mark that is kept up to date; nil keeps none
	// directory of the block files that are synced; "" when the NATS server syncs before it
	// acknowledges
	Blocks string
	Sync   func(*os.File) error // syncs a block file; nil means fdatasync; tests set it
}

// UseFiles sets the log's local files. It must be called before any other method.
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

// WaitDurable returns when every event up to position is on disk. The event at position must have
// been acknowledged.
func (l *JetStream) WaitDurable(ctx context.Context, position uint64) error {
	return l.disk.wait(ctx, position)
}

// CloseFiles closes the block file that is open for syncing, unless a sync is running.
func (l *JetStream) CloseFiles() {
	if l.disk != nil {
		l.disk.close()
	}
}
