package projections

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"os"

	"anneal/eventlog"
	"anneal/eventlog/archive"
)

// A Loading reads the newest snapshot in a directory in the background, before the log is open.
type Loading struct {
	dir   string
	fresh func() *World
	paths []string      // paths of the snapshots in the directory, newest first
	err   error         // error of listing the snapshots in the directory
	first loaded        // world of the newest snapshot, or the error of reading it; set when done is closed
	done  chan struct{} // closed when first is set, or when there is no snapshot
}

// A loaded is a world that World.read has read from a snapshot, with its checkpoint, or the error.
type loaded struct {
	world *World
	at    eventlog.Checkpoint
	err   error
}

// StartLoading starts to read the newest snapshot in a directory and returns immediately. The snapshots
// must not change until Open returns.
func StartLoading(dir string) *Loading { return startLoading(dir, NewWorld) }

func startLoading(dir string, fresh func() *World) *Loading {
	l := &Loading{dir: dir, fresh: fresh, done: make(chan struct{})}
	if l.paths, l.err = snapshots(dir); len(l.paths) == 0 {
		close(l.done)
		return l
	}
	go func() {
		defer close(l.done)
		l.first = l.read(l.paths[0])
	}()
	return l
}

func (l *Loading) read(path string) loaded {
	w := l.fresh()
	at, err := w.read(path)
	return loaded{w, at, err}
}

// Open is like OpenArchived for the directory of StartLoading, but uses the snapshot that was read
// meanwhile. It must be called only once.
func (l *Loading) Open(ctx context.Context, log eventlog.Log, a *archive.Archive) (*World, error) {
	w, err := l.load(func(path string, at eventlog.Checkpoint) error { return contains(ctx, log, path, at) },
		func(at eventlog.Checkpoint) error { return truncateArchive(a, at) })
	if err == nil && w.Position() == 0 {
		err = truncateArchive(a, eventlog.Checkpoint{})
	}
	if err != nil {
		return nil, err
	}
	w.archive = a
	return w, w.catchUp(ctx, log, 0)
}

// Wait returns when the newest snapshot is read, immediately if there is none.
func (l *Loading) Wait() {
	<-l.done
}

// Claim returns the checkpoint in the header of the newest snapshot. It is faster than Newest,
// because it does not check whether the snapshot is damaged. If it is, Newest returns the checkpoint
// of an older snapshot, and the log need not contain the event of the checkpoint from Claim.
func (l *Loading) Claim() (eventlog.Checkpoint, error) {
	if l.err != nil || len(l.paths) == 0 {
		return eventlog.Checkpoint{}, l.err
	}
	file, err := os.Open(l.paths[0])
	if err != nil {
		return eventlog.Checkpoint{}, err
	}
	defer file.Close()
	text, err := (&snapshotReader{in: file, checksum: sha256.New()}).header()
	if err == nil {
		var header snapshotHeader
		if header, err = readHeader(l.paths[0], text); err == nil {
			return header.Checkpoint, nil
		}
	}
	return Newest(l.dir)
}

// load returns the world of the newest snapshot that is usable, or else a fresh world. It calls check for
// each snapshot that is not damaged, and returns an error of check. It calls accept before it returns the
// world of a snapshot: errNotArchived makes it try an older snapshot, and it returns any other error.
func (l *Loading) load(check func(path string, at eventlog.Checkpoint) error,
	accept func(eventlog.Checkpoint) error) (*World, error) {
	if l.err != nil {
		return nil, l.err
	}
	for i, path := range l.paths {
		var read loaded
		if i == 0 {
			l.Wait()
			read = l.first
			l.first = loaded{} // release the world, which must not stay in memory if it is not used
		} else {
			read = l.read(path)
		}
		w, at, err := read.world, read.at, read.err
		if err == nil || errors.Is(err, errOtherSchema) {
			if err := check(path, at); err != nil {
				return nil, err
			}
		}
		if err == nil {
			err = accept(at)
		}
		switch {
		case err == nil:
			return w, nil
		case errors.Is(err, errDamaged), errors.Is(err, errOtherSchema), errors.Is(err, errNotArchived):
			slog.Warn("snapshot skipped: its events are folded from the log again", "snapshot", path, "reason", err.Error())
		default:
			return nil, err
		}
	}
	return l.fresh(), nil
}

// Newest returns the checkpoint of the newest snapshot in dir that is not damaged, also if it has
// another schema; zero when there is none. A log that does not contain the event of this checkpoint
// has lost events.
func Newest(dir string) (eventlog.Checkpoint, error) {
	paths, err := snapshots(dir)
	if err != nil {
		return eventlog.Checkpoint{}, err
	}
	for _, path := range paths {
		if at, err := NewWorldOf().read(path); err == nil || errors.Is(err, errOtherSchema) {
			return at, nil
		}
	}
	return eventlog.Checkpoint{}, nil
}
