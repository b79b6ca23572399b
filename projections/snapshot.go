package projections

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
)

// A snapshot is a file of JSON lines: a header, the lines of all tables and of the history of job
// waits (see line), and a footer with the digest and a checksum of all bytes before the footer.
const (
	snapshotFormat = 1
	snapshotsKept  = 2
	snapshotPrefix = "snapshot-"
	snapshotSuffix = ".jsonl"
)

type snapshotHeader struct {
	Format int    `json:"format"`
	Schema string `json:"schema"` // hash of the formats that the world can fold and store: see World.schema
	eventlog.Checkpoint
}

type snapshotFooter struct {
	Digest   Digest `json:"digest"`
	Checksum string `json:"checksum"` // SHA-256 of all bytes of the snapshot before the footer, in hexadecimal
}

var (
	errDamaged     = errors.New("the snapshot is damaged")
	errOtherSchema = errors.New("the snapshot was written by another version of anneal")
	errNotArchived = errors.New("the archive of earlier states lacks events before the snapshot")
)

// Save writes the current state of the world to a snapshot in dir, and removes all snapshots except
// the newest two. It returns when the snapshot is durable. The world can be used during Save. A
// world without events is not saved.
func (w *World) Save(dir string) error {
	w.saving.Lock()
	defer w.saving.Unlock()
	v := w.View()
	if v.Position == 0 {
		return nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	// The archive comes first, because OpenArchived archives only the events after the snapshot again.
	if w.archive != nil {
		if err := w.archive.Flush(); err != nil {
			slog.Warn("the archive of earlier states cannot be written: reads of earlier states can fail", "error",
				err)
		}
	}
	path := filepath.Join(dir, snapshotName(v.Position))
	err := writeDurably(path, func(out io.Writer) error {
		return v.write(out, snapshotHeader{snapshotFormat, w.schema(), v.Checkpoint})
	})
	if err != nil {
		return fmt.Errorf("save the snapshot of event %d: %w", v.Position, err)
	}
	w.mu.Lock()
	w.saved = max(w.saved, v.Position)
	w.mu.Unlock()
	return prune(dir)
}

// SaveEvery calls Save if at least n events were folded since the world was loaded from a snapshot
// or last saved, and reports whether it did. Call SaveEvery periodically, and with n = 1 before the
// process exits.
func (w *World) SaveEvery(dir string, n uint64) (saved bool, err error) {
	w.mu.Lock()
	due := w.at.Position-w.saved >= max(n, 1)
	w.mu.Unlock()
	if !due {
		return false, nil
	}
	return true, w.Save(dir)
}

func (v *View) write(out io.Writer, header snapshotHeader) error {
	checksum, sums := sha256.New(), newSums(v)
	both := io.MultiWriter(out, checksum)
	put := func(value any) error {
		text, err := json.Marshal(value)
		if err == nil {
			_, err = both.Write(append(text, '\n'))
		}
		return err
	}
	if err := put(header); err != nil {
		return err
	}
	err := linesOf(v, func(table string, line []byte, deleted bool) error {
		sums.add(table, line, deleted)
		_, err := both.Write(append(line, '\n'))
		return err
	})
	if err != nil {
		return err
	}
	return put(snapshotFooter{sums.digest(v.Checkpoint), hex.EncodeToString(checksum.Sum(nil))})
}

// writeDurably atomically and durably replaces the file at path. write writes the new content.
func writeDurably(path string, write func(io.Writer) error) error {
	dir := filepath.Dir(path)
	file, err := os.CreateTemp(dir, "."+snapshotPrefix+"*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name()) // does nothing after the file is renamed
	buffered := bufio.NewWriterSize(disk.Watch(file), 1<<20)
	err = write(buffered)
	for _, step := range []func() error{buffered.Flush, file.Sync} {
		if err == nil {
			err = step()
		}
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return err
	}
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer parent.Close()
	return parent.Sync()
}

// prune removes the unfinished snapshots in dir, and all snapshots except the snapshotsKept newest
// ones.
func prune(dir string) error {
	paths, err := snapshots(dir)
	if err != nil {
		return err
	}
	unfinished, err := filepath.Glob(filepath.Join(dir, "."+snapshotPrefix+"*.tmp"))
	if err != nil {
		return err
	}
	for _, path := range append(unfinished, paths[min(len(paths), snapshotsKept):]...) {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// RemoveSnapshotsBefore removes the snapshots in dir whose position is before the given one. It
// first waits for a Save in progress.
func RemoveSnapshotsBefore(w *World, dir string, position uint64) error {
	w.saving.Lock()
	defer w.saving.Unlock()
	paths, err := snapshots(dir)
	if err != nil {
		return err
	}
	first := filepath.Join(dir, snapshotName(position))
	for _, path := range paths {
		if path < first {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}

func snapshotName(position uint64) string {
	return fmt.Sprintf("%s%020d%s", snapshotPrefix, position, snapshotSuffix)
}

// snapshots returns the paths of the snapshots in dir, the newest first.
func snapshots(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	var paths []string
	// ReadDir sorts by name, and names contain the position with leading zeros.
	for _, e := range slices.Backward(entries) {
		if strings.HasPrefix(e.Name(), snapshotPrefix) && strings.HasSuffix(e.Name(), snapshotSuffix) {
			paths = append(paths, filepath.Join(dir, e.Name()))
		}
	}
	return paths, nil
}

// Open returns the world at the end of the log. It loads the newest usable snapshot in dir and
// folds the events of the log after the snapshot; without a snapshot it folds the whole log. It
// skips snapshots that are damaged or have another schema, with a warning.
//
// The error is FailedPrecondition when a snapshot has a newer format, and when the log does not
// have the last event of a snapshot. Such a log has lost events, or is not the log of the snapshot.
func Open(ctx context.Context, log eventlog.Log, dir string) (*World, error) {
	return open(ctx, NewWorld, log, dir, nil)
}

// OpenArchived is like Open, and makes the world add its events to an archive: see World.Archive.
// If the archive lacks events before a snapshot, it skips the snapshot, so that these events are
// folded and archived again.
func OpenArchived(ctx context.Context, log eventlog.Log, dir string, a *archive.Archive) (*World, error) {
	return open(ctx, NewWorld, log, dir, a)
}

func open(ctx context.Context, fresh func() *World, log eventlog.Log, dir string, a *archive.Archive) (*World, error) {
	return startLoading(dir, fresh).Open(ctx, log, a)
}

// truncateArchive removes the events after the checkpoint of a snapshot from an archive; a nil
// archive is ignored. It returns errNotArchived when the archive lacks events before the
// checkpoint.
func truncateArchive(a *archive.Archive, at eventlog.Checkpoint) error {
	if a == nil {
		return nil
	}
	complete, err := a.Keep(at)
	if err == nil && !complete {
		err = errNotArchived
	}
	return err
}

// Load returns the world of the newest usable snapshot in dir, without folding the events after the
// snapshot. It returns an empty world when there is no usable snapshot.
func Load(dir string) (*World, error) {
	return StartLoading(dir).load(func(string, eventlog.Checkpoint) error { return nil },
		func(eventlog.Checkpoint) error { return nil })
}

// contains returns an error unless the log contains the last event of the snapshot at path with the
// given checkpoint.
func contains(ctx context.Context, log eventlog.Log, path string, checkpoint eventlog.Checkpoint) error {
	found, err := log.At(ctx, checkpoint.Position)
	switch {
	case domain.CodeOf(err) == domain.NotFound:
		last, err := log.Last(ctx)
		if err != nil {
			return err
		}
		return mismatch(path, checkpoint, fmt.Sprintf("the log ends at position %d", last.Position))
	case err != nil:
		return fmt.Errorf("read the last event of %s in the log: %w", path, err)
	case found.ID != checkpoint.EventID:
		return mismatch(path, checkpoint, fmt.Sprintf("the log has event %s at this position", found.ID))
	}
	return nil
}

func mismatch(path string, at eventlog.Checkpoint, found string) error {
	e := domain.Errorf(domain.FailedPrecondition,
		"the snapshot %s ends with event %s at position %d, but %s: the log lost events after the snapshot was saved, or "+
			"it is another log. Restore the log of the snapshot; or, to accept the loss, move the snapshots out of %s and "+
			"start again",
		path, at.EventID, at.Position, found, filepath.Dir(path))
	e.Reason = "LOG_MISMATCH"
	return e
}
