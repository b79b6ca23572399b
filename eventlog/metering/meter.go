// Package metering holds the usage records of requests to models, and when API keys were last used.
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

// MeterOptions configures a Meter.
type MeterOptions struct {
	Conn   *nats.Conn
	Dir    string // directory of the records that the stream has not acknowledged; one Meter at a time uses it
	ID     string // ID of the control plane, for Record.ControlPlane
	Space  *disk.Space
	Logger *slog.Logger
}

// A Meter writes usage records to the usage stream, each exactly once. Requests do not wait for the
// stream: a record is written to a file first, survives the end of the process there, and is sent
// until the stream acknowledges it. After a power failure the records of the last syncEvery can be
// missing. On a nearly full disk, records are lost; their numbers are missing in the stream.
type Meter struct {
	options MeterOptions
	js      jetstream.JetStream
	spool   *spool
	losses  losses
	stop    context.CancelFunc
	running sync.WaitGroup

	mu       sync.Mutex
	reserved map[uint64]func()      // by index in the spool: releases the space of a record
	sent     chan struct{}          // closed and replaced when forwarded grows
	lost     uint64                 // records that were not written to the spool since the last one that was
	waiting  atomic.Pointer[cursor] // position up to which records are forwarded
}

// usageCopies is how often a record is written: to the stream, and to the mirror of all readers.
const usageCopies = 2

// syncEvery is the maximum time after which a record survives a power failure.
const syncEvery = 100 * time.Millisecond

// logLossEvery is the minimum time between two messages about records that are lost, or that wait.
const logLossEvery = 10 * time.Second

// losses logs records that are lost, and outages: the first one, and from then on how many records were
// lost, so that an outage does not fill the log of the server.
type losses struct {
	logger *slog.Logger
	mu     sync.Mutex
	logged map[string]time.Time // by message
	count  map[string]int       // since the last message
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
	messageLost    = "usage of requests was not recorded"
	messageWaiting = "usage records wait on disk, because NATS does not accept them"
)

// An entry is a record in the spool.
type entry struct {
	Record       Record       `json:"record"`
	Time         time.Time    `json:"time"`
	Request      string       `json:"request"`
	Trace        domain.Trace `json:"trace"`
	ID           string       `json:"id"`
	Repeatable   bool         `json:"repeatable,omitempty"` // an earlier record may have the same ID
	ControlPlane string       `json:"controlPlane"`
	Lost         uint64       `json:"lost,omitempty"` // records between this one and the one before it that were lost
}

func decodeEntry(data []byte) (e entry, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber() // numbers in the metadata keep their digits
	return e, decoder.Decode(&e)
}

// NewMeter returns a meter that publishes to the existing usage stream over a connection. It first
// sends the records that earlier meters left in the directory.
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
		m.losses.add(messageLost, 1, fmt.Errorf("%w: %d bytes at its end", errDamagedSpool, queue.cut))
		m.lost = 1 // readers see that a number is missing; nobody knows how many
	}
	m.waiting.Store(&at)
	m.running.Go(func() { m.forward(ctx) })
	m.running.Go(func() { m.syncSpool(ctx) })
	return m, nil
}

// Record stores a usage record, which is then sent to the stream. The error is ResourceExhausted on a
// nearly full disk.
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

// Waiting returns the number of records that the stream has not acknowledged.
func (m *Meter) Waiting() int { return int(m.spool.end() - m.waiting.Load().Next) }

// Drain waits until the stream has acknowledged all records. It returns the error of ctx when ctx is
// done first; the records are then sent by the next meter of the directory.
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

// Close ends the meter. Records that wait stay in its directory.
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
				m.losses.add("usage records are not safe from a power failure: the sync of their file failed", 1, err)
			}
		}
	}
}

// advance moves the cursor, and releases the space of the records before it.
func (m *Meter) advance(to cursor) error {
	err := errors.Join(writeCursor(m.options.Dir, to), m.spool.forget(to.Next, filepath.Join(m.options.Dir, cursorFile)))
	m.mu.Lock()
	defer m.mu.Unlock()
	for index := m.waiting.Load().Next; index < to.Next; index++ {
		if done := m.reserved[index]; done != nil {
			done()
			delete(m.reserved, index)
		}
	}
	m.waiting.Store(&to)
	close(m.sent)
	m.sent = make(chan struct{})
	return err
}
