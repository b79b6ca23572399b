package eventlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// A diskSync makes acknowledged messages of the embedded server durable with a shared fsync (group
// commit).
//
// The server writes each message to the stream's newest block file before it acknowledges the
// message. Its own sync_interval: always costs one fsync for each message, one after another. Here
// every acknowledged writer waits for the next round: one fsync serves all messages written before
// it. The log acknowledges no append, and shows no event to a reader in this process, before the
// event's round has ended. See docs/adr/0033.
type diskSync struct {
	dir    string               // of the block files: 1.blk, 2.blk, ...
	sync   func(*os.File) error // fdatasync; replaced by tests
	mark   *integrity.MarkFile  // of the log; nil for other streams
	synced atomic.Uint64        // positions up to here are on disk

	mu      sync.Mutex
	wanted  uint64 // the highest position that a caller waits for
	next    *round // the round that has not begun
	running bool
	failed  error // kept: after a failed fdatasync the kernel reports lost pages as clean

	block  *os.File // used by the running round only
	number int
}

type round struct {
	done    chan struct{}
	err     error // once done
	waiting bool  // a caller waits for it
}

func newDiskSync(dir string) *diskSync {
	return &diskSync{
		dir:  dir,
		sync: disk.Fdatasync,
		next: &round{done: make(chan struct{})},
	}
}

// wait returns when every message up to an acknowledged position is on disk.
func (d *diskSync) wait(ctx context.Context, position uint64) error {
	if d == nil || position <= d.synced.Load() {
		return nil
	}
	d.mu.Lock()
	if d.failed != nil {
		defer d.mu.Unlock()
		return d.failed
	}
	d.wanted = max(d.wanted, position)
	mine := d.next
	mine.waiting = true
	if !d.running { // the first waiter does the round
		d.running = true
		d.mu.Unlock()
		if more := d.round(); more {
			go d.rounds()
		}
		return mine.err
	}
	d.mu.Unlock()
	select {
	case <-mine.done:
		return mine.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// broken reports whether the disk has failed.
func (d *diskSync) broken() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed != nil
}

// rounds does rounds while callers wait.
func (d *diskSync) rounds() {
	for d.round() {
	}
}

// round does the next round and reports whether another one is needed.
func (d *diskSync) round() (more bool) {
	d.mu.Lock()
	wanted, this, failed := d.wanted, d.next, d.failed
	d.next = &round{done: make(chan struct{})}
	d.mu.Unlock()

	if failed == nil && wanted > d.synced.Load() { // else an earlier round served them, or the disk has failed
		err := d.syncBlocks()
		if err == nil {
			err = d.mark.SetDurable(wanted)
		}
		if err != nil {
			failed = domain.Errorf(domain.Unavailable, "the disk of the event log failed (%v): see to it, then start again", err)
			d.mark.SetFailed()
		} else {
			d.synced.Store(wanted)
		}
	}
	this.err = failed
	close(this.done)

	d.mu.Lock()
	defer d.mu.Unlock()
	d.failed = failed
	d.running = d.next.waiting
	return d.running
}

// syncBlocks syncs the block that was newest in the last round and all later ones, with their
// directory entries. It leaves a block only after a sync that began when the next block existed:
// until then the server writes to it.
func (d *diskSync) syncBlocks() error {
	if err := d.findBlock(); err != nil {
		return err
	}
	for {
		following, err := os.Open(d.path(d.number + 1))
		last := errors.Is(err, os.ErrNotExist)
		if err != nil && !last {
			return err
		}
		if err := d.sync(d.block); err != nil || last {
			return err
		}
		_ = d.block.Close()
		d.block, d.number = following, d.number+1
		if err := disk.Sync(d.dir); err != nil {
			return err
		}
	}
}

func (d *diskSync) path(number int) string {
	return filepath.Join(d.dir, strconv.Itoa(number)+".blk")
}

// findBlock opens the newest block when none is open or the open file was replaced.
func (d *diskSync) findBlock() error {
	if d.block != nil {
		here, err := d.block.Stat()
		if err != nil {
			return err
		}
		if there, err := os.Stat(d.path(d.number)); err == nil && os.SameFile(here, there) {
			return nil
		}
		_ = d.block.Close()
		d.block = nil
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return err
	}
	d.number = 0
	for _, entry := range entries {
		if number, err := strconv.Atoi(strings.TrimSuffix(entry.Name(), ".blk")); err == nil {
			d.number = max(d.number, number)
		}
	}
	if d.number == 0 {
		return fmt.Errorf("no block file in %s", d.dir)
	}
	if d.block, err = os.Open(d.path(d.number)); err != nil {
		return err
	}
	return disk.SyncTree(d.dir)
}

func (d *diskSync) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running && d.block != nil {
		_ = d.block.Close()
		d.block = nil
	}
}

// SyncSubject takes requests, in the account CONTROL, to sync all files of a stream, or the log up
// to a position ("EVENTS 42"). Only the embedded server responds: servers of a cluster sync before
// they acknowledge.
const SyncSubject = "control.sync"

// RequestLogSync returns when the log is on disk up to a position.
func RequestLogSync(ctx context.Context, nc *nats.Conn, position uint64) error {
	return RequestSync(ctx, nc, Stream+" "+strconv.FormatUint(position, 10))
}

// RequestSync returns when every acknowledged message of a stream is on disk.
func RequestSync(ctx context.Context, nc *nats.Conn, stream string) error {
	answer, err := nc.RequestWithContext(ctx, SyncSubject, []byte(stream))
	if errors.Is(err, nats.ErrNoResponders) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync stream %s: %w", stream, err)
	}
	if len(answer.Data) > 0 {
		return domain.Errorf(domain.Unavailable, "the disk of the event log failed (%s): see to it, then start again", answer.Data)
	}
	return nil
}
