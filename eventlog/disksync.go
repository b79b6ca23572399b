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

// A diskSync makes a stream of the embedded server outlive a power failure,
// for many writers at the price of one.
//
// The server writes each message into the stream's newest block file before it
// acknowledges it. Its own way to have it on disk, sync_interval: always,
// costs one fsync a message, one after another. Here whoever was acknowledged
// waits for the next round instead: one fsync serves all that came before it.
// The log answers nobody, and shows an event to no reader in this process,
// before its round is over.
type diskSync struct {
	dir    string               // of the block files: 1.blk, 2.blk, ...
	sync   func(*os.File) error // dataSync, but for tests
	mark   *integrity.MarkFile  // of the log; nil for other streams
	synced atomic.Uint64        // positions up to here are on disk

	mu      sync.Mutex
	wanted  uint64 // the highest position that somebody waits for
	next    *round // begins after now
	running bool
	failed  error // a disk that failed once is not believed again

	block  *os.File // touched by the running round only
	number int
}

type round struct {
	done    chan struct{}
	err     error // once done
	waiting bool  // somebody waits for it
}

func newDiskSync(dir string) *diskSync {
	return &diskSync{
		dir:  dir,
		sync: disk.Fdatasync,
		next: &round{done: make(chan struct{})},
	}
}

// wait returns once every message up to an acknowledged position is on disk.
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
	if !d.running { // who comes first does the round
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

// broken tells whether the disk has failed.
func (d *diskSync) broken() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed != nil
}

// rounds does one round after another as long as somebody waits.
func (d *diskSync) rounds() {
	for d.round() {
	}
}

// round does the next round, and tells whether another one is wanted.
func (d *diskSync) round() (more bool) {
	d.mu.Lock()
	wanted, this, failed := d.wanted, d.next, d.failed
	d.next = &round{done: make(chan struct{})}
	d.mu.Unlock()

	if failed == nil && wanted > d.synced.Load() { // else an earlier round served them, or none will again
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

// syncBlocks syncs the block that was newest in the last round, and every one
// that came after it, with its name. A block is left behind only when it is
// synced after its follower was there: until then the server writes into it.
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

// findBlock opens the newest block, when none is open or the open one is no
// longer the one of its name.
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

// syncSubject is where the embedded server is asked, in the account CONTROL,
// to sync all files of a stream, or the log up to a position ("EVENTS 42"). A
// cluster has no responder there: its servers sync before they acknowledge.
const SyncSubject = "control.sync"

// askLogSync returns once the log is on disk up to a position.
func RequestLogSync(ctx context.Context, nc *nats.Conn, position uint64) error {
	return RequestSync(ctx, nc, Stream+" "+strconv.FormatUint(position, 10))
}

// askSync returns once all that was acknowledged on a stream is on disk.
func RequestSync(ctx context.Context, nc *nats.Conn, stream string) error {
	answer, err := nc.RequestWithContext(ctx, SyncSubject, []byte(stream))
	if errors.Is(err, nats.ErrNoResponders) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("eventlog: syncing %s: %w", stream, err)
	}
	if len(answer.Data) > 0 {
		return domain.Errorf(domain.Unavailable, "the disk of the event log failed (%s): see to it, then start again", answer.Data)
	}
	return nil
}
