package eventlog

import (
	"context"
	"os"
	"sync/atomic"

	"github.com/nats-io/nats.go"

	"anneal/domain"
)

// FirstEvents is firstEvents for the tests in package eventlog_test.

const FirstEvents = firstEvents

// SetBlockSync replaces the function that syncs a block file.
func (l *JetStream) SetBlockSync(sync func(*os.File) error) { l.disk.sync = sync }

// NextRoundAwaited reports whether a caller waits for the next round of the disk sync.
func (l *JetStream) NextRoundAwaited() bool {
	l.disk.mu.Lock()
	defer l.disk.mu.Unlock()
	return l.disk.next.waiting
}

// PublishOnce publishes a message and returns its position without waiting until the message is on
// disk.
func (l *JetStream) PublishOnce(ctx context.Context, m *nats.Msg) (uint64, error) {
	return l.publishOnce(ctx, m)
}

// InMsgs returns how many messages the log's connection has received.
func (l *JetStream) InMsgs() uint64 { return l.nc.Stats().InMsgs }

// Resolve calls resolve of a new decision on a resource, as after an append that was not
// acknowledged.
func Resolve(ctx context.Context, log Log, rows Rows, name domain.Name) (Change, error) {
	d := decision{log: log, rows: rows, intent: domain.Intent{Name: name}}
	return d.resolve(ctx)
}

// WatchProgress is the method watchProgress of l.
func WatchProgress(ctx context.Context, l *JetStream, position *atomic.Uint64, stop context.CancelCauseFunc) {
	l.watchProgress(ctx, position, stop)
}

// CheckReplicatedHistory calls checkHistory of l as if its stream were replicated.
func CheckReplicatedHistory(ctx context.Context, l *JetStream) error {
	l.replicated = true
	return l.checkHistory(ctx)
}

// Lanes returns the number of resources for which p has a lane.
func (p *Pipeline) Lanes() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.lanes)
}

// LaneUsers returns the number of commands that use the lane of a resource.
func (p *Pipeline) LaneUsers(name domain.Name) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.lanes[name]; l != nil {
		return l.users
	}
	return 0
}

// StoredLast returns the position of the newest event that the server has stored, which may not be
// durable.
func StoredLast(ctx context.Context, l *JetStream) (uint64, error) {
	stream, err := l.js.Stream(ctx, Stream)
	if err != nil {
		return 0, err
	}
	return stream.CachedInfo().State.LastSeq, nil
}
