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
	"time"

	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// A diskSync makes acknowledged messages of the embedded server durable with a shared fsync (group
// commit).
//
// The server writes each message to the stream's newest block file before it acknowledges the
// message. With the setting "sync_interval: always" the server would do one fsync for each message,
// one after another. With a diskSync, each writer of an acknowledged message waits for the next
// round instead: one fsync covers all messages that were written before the fsync. The log
// acknowledges no append, and shows no event to a reader in this process, before the event's round
// has ended. See docs/adr/0004.
type diskSync struct {
	dir    string               // directory of the block files 1.blk, 2.blk, ...
	sync   func(*os.File) error // syncs a block file with fdatasync; tests replace it
	mark   *integrity.MarkFile  // the log's high-water mark; nil for other streams
	synced atomic.Uint64        // every message up to this position is on disk

	mu      sync.Mutex
	appends appends
	wanted  uint64 // highest position that was acknowledged or that a caller waits for
	next    *round // the round that begins when the running one has ended
	current *round // the running round or, between rounds, the last one; nil before the first
	running bool
	failed  error // error of the first failed sync, returned by all later calls: fdatasync reports lost pages only once

	// Only the running round uses the fields below.
	block  *os.File      // the block file that was newest in the last round, open for syncing
	number int           // the number in the name of block, such as 2 for 2.blk
	took   time.Duration // duration of the last fdatasync
}

type round struct {
	done    chan struct{}
	err     error  // result of the round; set before done is closed
	waiting bool   // a caller waits for done
	upTo    uint64 // the round syncs the messages up to this position; set when its fdatasync begins
}

// publish calls send, which sends an event to the server and returns the event's position. It
// counts the append as in progress until send returns: see gather.
func (d *diskSync) publish(send func() (uint64, error)) (position uint64, err error) {
	if d == nil {
		return send()
	}
	d.mu.Lock()
	d.appends.sent++
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.wanted = max(d.wanted, position) // so that the round that waits in gather also syncs this append
		d.appends.answer(position)
	}()
	return send()
}

func newDiskSync(dir string) *diskSync {
	return &diskSync{
		dir:  dir,
		sync: disk.Fdatasync,
		next: &round{done: make(chan struct{})},
	}
}

// wait returns when every message up to position is on disk. The server must have acknowledged the
// message at position.
func (d *diskSync) wait(ctx context.Context, position uint64) error {
	if d == nil || position <= d.synced.Load() {
		return nil
	}
	d.mu.Lock()
	if d.failed != nil {
		defer d.mu.Unlock()
		return d.failed
	}
	mine := d.next
	if current := d.current; d.running && current != nil && position <= current.upTo {
		mine = current // this round's fdatasync begins after the message was written
	}
	d.wanted = max(d.wanted, position)
	mine.waiting = true
	if !d.running { // the first caller that waits runs the rounds
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

// broken reports whether an fdatasync has failed; the log then accepts no appends until a restart.
func (d *diskSync) broken() bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.failed != nil
}

// rounds runs one sync round after another as long as callers wait.
func (d *diskSync) rounds() {
	for d.round() {
	}
}

// round runs the next sync round. more reports whether callers already wait for another one.
func (d *diskSync) round() (more bool) {
	d.gather()
	d.mu.Lock()
	wanted, this, failed := d.wanted, d.next, d.failed
	this.upTo = wanted
	d.current, d.next = this, &round{done: make(chan struct{})}
	d.mu.Unlock()

	// otherwise an earlier round already synced up to wanted, or the disk has failed
	if failed == nil && wanted > d.synced.Load() {
		begun := time.Now()
		err := d.syncBlocks()
		d.took = time.Since(begun)
		if err == nil {
			err = d.mark.SetDurable(wanted)
		}
		if err != nil {
			failed = domain.Errorf(domain.Unavailable,
				"the disk of the event log failed (%v): check the disk, then restart the server", err)
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

// gather waits until the server has answered the appends that are in progress, so that one sync
// covers these appends too. gather waits no longer than the last sync took. It returns immediately
// if there is only one writer, or if a follower has received the events of all appends in progress,
// because the server has then stored them. PostgreSQL's commit_delay and commit_siblings do the
// same with fixed values.
func (d *diskSync) gather() {
	d.mu.Lock()
	answered := d.appends.inProgress(d.wanted)
	d.mu.Unlock()
	if answered == nil || d.took == 0 {
		return
	}
	timer := time.NewTimer(d.took)
	defer timer.Stop()
	select {
	case <-answered:
	case <-timer.C:
	}
}

// appends counts the appends that were sent to the NATS server and those that it has answered. The
// mutex of the diskSync guards the fields.
type appends struct {
	sent     uint64
	answered uint64
	last     uint64        // highest position in the answers of the server
	waitFor  uint64        // done is closed when answered reaches this number
	done     chan struct{} // closed when answered reaches waitFor; nil when no caller waits
}

// inProgress returns a channel that is closed when the server has answered all appends that were
// sent before the call. It returns nil when no append is in progress, or when the server has stored
// all of them. stored is the highest position that is known to be stored: all appends in progress
// are stored if there are at least as many positions from the last answered one to stored. A later
// call replaces the channel, and the former channel is never closed.
func (a *appends) inProgress(stored uint64) <-chan struct{} {
	if a.sent-a.answered <= stored-min(stored, a.last) {
		return nil
	}
	a.waitFor, a.done = a.sent, make(chan struct{})
	return a.done
}

func (a *appends) answer(position uint64) {
	a.answered++
	a.last = max(a.last, position)
	if a.done != nil && a.answered >= a.waitFor {
		close(a.done)
		a.done = nil
	}
}

// syncBlocks syncs the block file that was newest in the last round and all later block files, with
// their directory entries. It syncs a block file for the last time when the next block file exists
// already, because the server writes to a block file until it creates the next one.
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

// findBlock opens the newest block file when none is open or the open file was replaced.
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
		return fmt.Errorf("the NATS server has no block file in %s", d.dir)
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

// SyncSubject is the subject, in the NATS account CONTROL, of requests to sync to disk. A request
// with the body "NAME" syncs the stream NAME; "EVENTS 42" syncs the log up to position 42. Only the
// embedded server responds, because the servers of a NATS cluster sync a message before they
// acknowledge it.
const SyncSubject = "control.sync"

// RequestLogSync requests a sync of the log and returns when the log is on disk up to a position.
func RequestLogSync(ctx context.Context, nc *nats.Conn, position uint64) error {
	return RequestSync(ctx, nc, Stream+" "+strconv.FormatUint(position, 10))
}

// RequestSync requests a sync of a stream and returns when every acknowledged message of the stream
// is on disk.
func RequestSync(ctx context.Context, nc *nats.Conn, stream string) error {
	answer, err := nc.RequestWithContext(ctx, SyncSubject, []byte(stream))
	if errors.Is(err, nats.ErrNoResponders) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("sync stream %s: %w", stream, err)
	}
	if len(answer.Data) > 0 {
		return domain.Errorf(domain.Unavailable,
			"the disk of the event log failed (%s): check the disk, then restart the server",
			answer.Data)
	}
	return nil
}
