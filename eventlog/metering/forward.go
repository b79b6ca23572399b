package metering

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog"
)

const (
	window = 256 // maximum number of records that are sent without an acknowledgement
	// after this time without an acknowledgement, the forwarder reads the stream to see whether it has
	// the record
	ackTime   = 10 * time.Second
	retryWait = 250 * time.Millisecond
	// longOutage is the time from which on an outage of the usage stream is logged. Electing a leader
	// takes less.
	longOutage = 10 * time.Second
)

// A cursor is the place in the spool up to which records were forwarded to the usage stream. The
// cursor's file may be older than the stream, or missing: lookUp then finds out which records the
// stream has.
type cursor struct {
	Next uint64 `json:"next"` // spool index of the next record to send
	// sequence in the stream up to which every record of this meter is before Next in the spool
	Sequence uint64 `json:"sequence"`
	// Numbers has, by control plane, the number of the last record that was sent. There are several
	// when the control plane was started with another --name, which changes its ID.
	Numbers map[string]uint64 `json:"numbers"`
}

const cursorFile = "cursor.json"

func readCursor(dir string) (at cursor) {
	data, err := os.ReadFile(filepath.Join(dir, cursorFile))
	if err != nil || json.Unmarshal(data, &at) != nil || at.Numbers == nil {
		return cursor{Numbers: map[string]uint64{}}
	}
	return at
}

func writeCursor(dir string, at cursor) error {
	data, err := json.Marshal(at)
	if err != nil {
		return err
	}
	temp := filepath.Join(dir, cursorFile+".new")
	if err := os.WriteFile(temp, data, 0o600); err != nil {
		return fmt.Errorf("write the cursor of the usage spool: %w", err)
	}
	return os.Rename(temp, filepath.Join(dir, cursorFile))
}

// A forwarder sends the records in the spool to the usage stream. Only its goroutine uses it.
type forwarder struct {
	*Meter
	at   cursor
	seen map[string]seenRecord // by ID: records of the stream after the cursor
	end  uint64                // only entries before this spool index can be in seen
}

// A seenRecord identifies a record in the usage stream. Records of earlier versions of anneal have
// neither field.
type seenRecord struct {
	controlPlane string
	number       uint64
}

func seenRecordOf(header nats.Header, data []byte) seenRecord {
	var record Record
	_ = json.Unmarshal(data, &record) // a message that is no usage record gets the number 0
	return seenRecord{header.Get(eventlog.HeaderControlPlane), record.Number}
}

// forward sends records to the stream until ctx is done, and tries again after errors.
func (m *Meter) forward(ctx context.Context) {
	f := forwarder{Meter: m, at: *m.waiting.Load()}
	var failing time.Time // when sending began to fail; zero while it succeeds
	for ctx.Err() == nil {
		err := f.lookUp(ctx)
		for err == nil {
			if err = f.sendWindow(ctx); err == nil {
				failing = time.Time{}
			}
		}
		if ctx.Err() != nil {
			return
		}
		if failing.IsZero() {
			failing = time.Now()
		}
		if time.Since(failing) > longOutage {
			m.losses.add(messageWaiting, 0, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryWait):
		}
	}
}

// lookUp reads the records after the cursor from the stream, so that they are not sent twice. The
// stream can have such records when a process ended or an acknowledgement was lost before the
// cursor was written.
func (f *forwarder) lookUp(ctx context.Context) error {
	stream, err := f.js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	f.seen, f.end = map[string]seenRecord{}, f.spool.end()
	state, known := stream.CachedInfo().State, len(f.at.Numbers) > 0
	if state.LastSeq < f.at.Sequence { // the stream was created again, or has lost its newest records
		f.at.Sequence = 0
	}
	if f.at.Sequence == state.LastSeq || state.Msgs == 0 {
		return nil
	}
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: f.at.Sequence + 1})
	if err != nil {
		return err
	}
	if consumer.CachedInfo().NumPending == 0 { // the stream has already deleted the records after the cursor
		return nil
	}
	messages, err := consumer.Messages()
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		message, err := next(ctx, messages)
		if err != nil {
			return err
		}
		meta, err := message.Metadata()
		if err != nil {
			return err
		}
		seen := seenRecordOf(message.Headers(), message.Data())
		if !known && seen.controlPlane != "" { // there was no cursor: continue the numbers that the stream has
			f.at.Numbers[seen.controlPlane] = max(f.at.Numbers[seen.controlPlane], seen.number)
		}
		if f.at.Next < f.end {
			f.seen[message.Headers().Get(eventlog.HeaderID)] = seen
		}
		if meta.NumPending == 0 || meta.Sequence.Stream >= state.LastSeq {
			return nil
		}
	}
}

// next returns the next message, or an error after ackTime: the stream may have lost messages since
// it reported how many there are.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, ackTime)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

// sendWindow waits for records in the spool, sends up to window of them, and advances the cursor
// when the stream has acknowledged all of them. When a window is sent again, its records get the
// same numbers.
func (f *forwarder) sendWindow(ctx context.Context) error {
	entries, after, err := f.spool.read(f.at.Next, window)
	if err != nil {
		return err
	}
	if after == f.at.Next {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-f.spool.changed:
			return nil
		}
	}
	to := f.at
	to.Numbers = maps.Clone(f.at.Numbers)
	var pending []sending
	for _, data := range entries {
		if data == nil {
			f.losses.add(messageLost, 1, errDamagedSpool)
			to.Next++
			to.Numbers[f.options.ID]++
			continue
		}
		e, err := decodeEntry(data)
		if err != nil { // the checksum is valid, so a version of anneal with another format wrote the entry
			f.losses.add(messageLost, 1, fmt.Errorf("decode a usage record: %w", err))
			to.Next++
			to.Numbers[f.options.ID]++
			continue
		}
		if e.Repeatable && len(pending) > 0 {
			break // the number of this record depends on the acknowledgements of those before it
		}
		to.Next++
		last := to.Numbers[e.ControlPlane]
		if existing, isKnown := f.seen[e.ID]; isKnown {
			to.pass(e, existing)
			continue
		}
		sent := sending{entry: e, number: last + 1 + e.Lost}
		message, err := sent.record().message()
		if err != nil {
			return err
		}
		if sent.PubAckFuture, err = f.js.PublishMsgAsync(message, jetstream.WithStallWait(ackTime)); err != nil {
			return err
		}
		pending = append(pending, sent)
		if e.Repeatable {
			break
		}
		to.Numbers[e.ControlPlane] = sent.number
	}
	for _, sent := range pending {
		if err := f.await(ctx, sent, &to); err != nil {
			return err
		}
	}
	read := f.at.Next + uint64(len(entries))
	if to.Next == read && after > read {
		f.losses.add(messageLost, int(after-read), errDamagedSpool)
		to.Next = after
		to.Numbers[f.options.ID] += after - read
	}
	f.at = to
	if to.Next >= f.end {
		f.seen = nil // drop the map, which can be large: it can have every record of the stream
	}
	return f.advance(to)
}

// A sending is a record that was sent to the stream, and the future of its acknowledgement.
type sending struct {
	jetstream.PubAckFuture
	entry
	number uint64
}

func (s sending) record() Record {
	r := s.Record
	r.Time, r.Request, r.Trace, r.ID, r.ControlPlane, r.Number = s.Time, s.Request, s.Trace, s.ID, s.ControlPlane,
		s.number
	return r
}

// await waits until the stream has acknowledged a record, and advances the cursor past the record.
// When the stream refuses a record as too large, the record is dropped, so that it does not block
// later records.
func (f *forwarder) await(ctx context.Context, sent sending, to *cursor) error {
	select {
	case ack := <-sent.Ok():
		to.Sequence = max(to.Sequence, ack.Sequence)
		if sent.Repeatable && ack.Duplicate {
			there, err := f.get(ctx, ack.Sequence)
			if err != nil {
				return err
			}
			to.pass(sent.entry, there)
		} else if sent.Repeatable {
			to.Numbers[sent.ControlPlane] = sent.number
		}
	case err := <-sent.Err():
		var refused *jetstream.APIError
		if !errors.As(err, &refused) || refused.ErrorCode != errTooLarge {
			return err
		}
		f.losses.add(messageLost, 1, err)
		to.Numbers[sent.ControlPlane] = max(to.Numbers[sent.ControlPlane], sent.number)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// pass advances the number of a control plane past an entry that the stream already has. existing
// is the stream's record of the entry. If this control plane sent that record, the entry has the
// number of the record. If another control plane metered the request first, the entry takes no
// number.
func (c *cursor) pass(e entry, existing seenRecord) {
	number := c.Numbers[e.ControlPlane] + e.Lost
	if existing.controlPlane == e.ControlPlane {
		number = max(number, existing.number)
	}
	c.Numbers[e.ControlPlane] = number
}

// get reads the record at a sequence of the stream; the zero seenRecord when the stream has deleted
// it.
func (f *forwarder) get(ctx context.Context, sequence uint64) (seenRecord, error) {
	stream, err := f.js.Stream(ctx, Stream)
	if err != nil {
		return seenRecord{}, err
	}
	message, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // the stream has deleted the message
		return seenRecord{}, nil
	}
	if err != nil {
		return seenRecord{}, err
	}
	return seenRecordOf(message.Header, message.Data), nil
}

var errDamagedSpool = errors.New("a file of the usage spool is damaged")

// errTooLarge is the code of the JetStream error "message size exceeds maximum allowed".
const errTooLarge jetstream.ErrorCode = 10054
