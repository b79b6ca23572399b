// Package metering stores the usage records of requests to models, and when API keys were last
// used.
package metering

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
)

// MeterOptions configure a Meter.
type MeterOptions struct {
	Conn   *nats.Conn
	Dir    string // directory of the spool; only one Meter may use it at a time
	ID     string // ID of this control plane, for Record.ControlPlane
	Space  *disk.Space
	Logger *slog.Logger
}

// A Meter writes usage records to the usage stream, each exactly once. A request does not wait for
// the stream: Record only appends to a spool of files, from which a goroutine sends the record
// until the stream acknowledges it. A power failure can lose the records of the last syncEvery. On
// a nearly full disk, records are dropped; their numbers are then missing in the stream.
type Meter struct {
	options MeterOptions
	js      jetstream.JetStream
	spool   *spool
	losses  losses
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	reserved map[uint64]func()      // by spool index: releases the disk space that was reserved for a record
	sent     chan struct{}          // closed and replaced when a record is acknowledged
	lost     uint64                 // number of records that were dropped since the last one that was written to the spool
	waiting  atomic.Pointer[cursor] // how far records were forwarded to the stream
}

// usageCopies is how often NATS stores a record: in the stream and in the mirror for readers.
const usageCopies = 2

// syncEvery is the interval at which the spool is synced. A power failure can lose the records of
// that time.
const syncEvery = 100 * time.Millisecond

// logLossEvery is the minimum time between two warnings with the same message.
const logLossEvery = 10 * time.Second

// losses logs dropped records and outages of the stream. It logs the first one at once, and then at
// most every logLossEvery the number since the last message, so that an outage does not fill the
// log.
type losses struct {
	logger *slog.Logger
	mu     sync.Mutex
	logged map[string]time.Time // by message: when it was last logged
	count  map[string]int       // by message: number of dropped records since it was last logged
}

func (l *losses) add(message string, n int, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[message] += n
	if now := time.Now(); now.Sub(l.logged[message]) >= logLossEvery {
		l.logger.Warn(message, "lost", l.count[message], "error", err)
		l.logged[message], l.count[message] = now, 0
	}
}

const (
	messageLost    = "usage records were lost: these requests are missing in the usage of their accounts"
	messageWaiting = "usage records are kept on disk, because NATS does not accept them: they are sent when it does"
)

// An entry is a usage record as it is stored in the spool.
type entry struct {
	Record  Record       `json:"record"`
	Time    time.Time    `json:"time"`
	Request string       `json:"request"`
	Trace   domain.Trace `json:"trace"`
	ID      string       `json:"id"`
	// whether another record may have the same ID; see Record.Repeatable
	Repeatable   bool   `json:"repeatable,omitempty"`
	ControlPlane string `json:"controlPlane"`
	Lost         uint64 `json:"lost,omitempty"` // number of records that were dropped directly before this one
}

func decodeEntry(data []byte) (e entry, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // numbers in metadata keep all their digits
	return e, decoder.Decode(&e)
}

// NewMeter returns a Meter that publishes to the existing usage stream. It first sends the records
// that earlier processes left in the spool.
func NewMeter(options MeterOptions) (*Meter, error) {
	js, err := jetstream.New(options.Conn, jetstream.WithPublishAsyncMaxPending(2*window),
		jetstream.WithPublishAsyncTimeout(ackTime))
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	at := readCursor(options.Dir)
	queue, err := openSpool(options.Dir, at.Next)
	if err != nil {
		return nil, err
	}
	if at.Next == 0 {
		at.Next = queue.begin()
	}
	ctx, stop := context.WithCancel(context.Background())
	m := &Meter{options: options, js: js, spool: queue, stop: stop, reserved: map[uint64]func(){},
		sent:   make(chan struct{}),
		losses: losses{logger: options.Logger, logged: map[string]time.Time{}, count: map[string]int{}}}
	if queue.cut > 0 {
		m.losses.add(messageLost, 1, fmt.Errorf("%w: removed %d bytes at its end", errDamagedSpool, queue.cut))
		m.lost = 1 // the missing number shows readers that records were lost; their count is unknown
	}
	m.waiting.Store(&at)
	m.running.Go(func() { m.forward(ctx) })
	m.running.Go(func() { m.syncSpool(ctx) })
	return m, nil
}

// Record writes a usage record to the spool, from which it is sent to the stream. It returns a
// ResourceExhausted error when the disk is nearly full.
func (m *Meter) Record(u Record) error {
	u, repeatable, err := u.identified()
	if err != nil {
		return err
	}
	u.ControlPlane = m.options.ID
	message, err := u.message()
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	done, err := m.options.Space.Reserve(disk.Requests, int64(usageCopies*message.Size()))
	if err != nil {
		m.lost++
		return err
	}
	data, err := encode(entry{Record: u, Time: u.Time, Request: u.Request, Trace: u.Trace, ID: u.ID,
		Repeatable: repeatable, ControlPlane: u.ControlPlane, Lost: m.lost})
	if err == nil {
		var index uint64
		if index, err = m.spool.append(data); err == nil {
			m.reserved[index], m.lost = done, 0
			return nil
		}
	}
	done()
	m.lost++
	return err
}

// Waiting returns the number of records in the spool that the stream has not acknowledged.
func (m *Meter) Waiting() int { return int(m.spool.end() - m.waiting.Load().Next) }

// Drain waits until the stream has acknowledged all records. It returns the error of ctx when ctx
// is done first; the next Meter with the same directory then sends the remaining records.
func (m *Meter) Drain(ctx context.Context) error {
	for {
		m.mu.Lock()
		sent := m.sent
		m.mu.Unlock()
		if m.Waiting() == 0 {
			return nil
		}
		select {
		case <-sent:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close stops the Meter. Records that were not acknowledged stay in the spool.
func (m *Meter) Close() error {
	m.stop()
	m.running.Wait()
	return m.spool.close()
}

func (m *Meter) syncSpool(ctx context.Context) {
	ticker := time.NewTicker(syncEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := m.spool.sync(); err != nil {
				m.losses.add("cannot sync the spool of usage records: a power failure would lose its records; check the "+
					"disk", 1, err)
			}
		}
	}
}

// advance moves the cursor to a new position, and releases the disk space of the records before it.
func (m *Meter) advance(next cursor) error {
	err := errors.Join(writeCursor(m.options.Dir, next),
		m.spool.forget(next.Next, filepath.Join(m.options.Dir, cursorFile)))
	m.mu.Lock()
	defer m.mu.Unlock()
	for index := m.waiting.Load().Next; index < next.Next; index++ {
		if done := m.reserved[index]; done != nil {
			done()
			delete(m.reserved, index)
		}
	}
	m.waiting.Store(&next)
	close(m.sent)
	m.sent = make(chan struct{})
	return err
}
