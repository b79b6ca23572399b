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
	window    = 256              // records that are sent before the first of them is acknowledged
	ackTime   = 10 * time.Second // time after which a record that is not acknowledged is looked up in the stream
	retryWait = 250 * time.Millisecond
	// longOutage is longer than the election of a leader: an outage that is longer is logged.
	longOutage = 10 * time.Second
)

// A cursor is the position up to which records are in the stream. The file with it may be older than
// the stream, or missing: see forwarder.lookUp.
type cursor struct {
	Next     uint64 `json:"next"`     // index in the spool of the next record to send
	Sequence uint64 `json:"sequence"` // sequence of the stream up to which all records of this meter are before Next
	// Numbers are the numbers of the last records that were sent, by control plane: a control plane
	// that is started with another --name has another ID.
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

// A forwarder sends the records in the spool to the stream. Only its goroutine uses it.
type forwarder struct {
	*Meter
	at   cursor
	seen map[string]seenRecord // records of the stream after the cursor, by ID
	end  uint64                // index of the entry after those that seen may have
}

// A seenRecord is a record of the stream. Records of earlier versions have neither field.
type seenRecord struct {
	controlPlane string
	number       uint64
}

func seenRecordOf(header nats.Header, data []byte) seenRecord {
	var record Record
	_ = json.Unmarshal(data, &record) // a record without a number has the number 0
	return seenRecord{header.Get(eventlog.HeaderControlPlane), record.Number}
}

// forward sends records until ctx is done.
func (m *Meter) forward(ctx context.Context) {
	f := forwarder{Meter: m, at: *m.waiting.Load()}
	var failing time.Time // since when no record was sent
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

// lookUp reads the records of the stream after the cursor. A record may be there although the cursor
// does not say so, because a process ended or an acknowledgement was lost: it is not sent again.
func (f *forwarder) lookUp(ctx context.Context) error {
	stream, err := f.js.Stream(ctx, Stream)
	if err != nil {
		return err
	}
	f.seen, f.end = map[string]seenRecord{}, f.spool.end()
	state, known := stream.CachedInfo().State, len(f.at.Numbers) > 0
	if state.LastSeq < f.at.Sequence { // the stream was created again, or has lost records
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
	if consumer.CachedInfo().NumPending == 0 { // the records after the cursor have been deleted
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
		if !known && seen.controlPlane != "" { // the cursor was lost, or there was none
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

// next returns the next message. After ackTime it returns an error: the stream may have lost the messages
// since their number was read.
func next(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, ackTime)
	defer cancel()
	return messages.Next(jetstream.NextContext(ctx))
}

// sendWindow waits for records, sends some, and advances the cursor when the stream has acknowledged
// all of them. A window that is sent again gives its records the same numbers.
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
		one, err := decodeEntry(data)
		if err != nil { // of a version with another format, because the spool has verified the checksum
			f.losses.add(messageLost, 1, fmt.Errorf("decode a usage record: %w", err))
			to.Next++
			to.Numbers[f.options.ID]++
			continue
		}
		if one.Repeatable && len(pending) > 0 {
			break // whether the record takes a number depends on its acknowledgement
		}
		to.Next++
		last := to.Numbers[one.ControlPlane]
		if there, isThere := f.seen[one.ID]; isThere {
			to.pass(one, there)
			continue
		}
		sent := sending{entry: one, number: last + 1 + one.Lost}
		message, err := sent.record().message()
		if err != nil {
			return err
		}
		if sent.PubAckFuture, err = f.js.PublishMsgAsync(message, jetstream.WithStallWait(ackTime)); err != nil {
			return err
		}
		pending = append(pending, sent)
		if one.Repeatable {
			break
		}
		to.Numbers[one.ControlPlane] = sent.number
	}
	for _, one := range pending {
		if err := f.await(ctx, one, &to); err != nil {
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
		f.seen = nil // it can have all records of the stream, after an upgrade
	}
	return f.advance(to)
}

// A sending is a record that the stream has not acknowledged.
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

// await adds the acknowledgement of a record to the cursor. A record that the stream will never accept
// is lost, so that it does not keep back the following ones.
func (f *forwarder) await(ctx context.Context, one sending, to *cursor) error {
	select {
	case ack := <-one.Ok():
		to.Sequence = max(to.Sequence, ack.Sequence)
		if one.Repeatable && ack.Duplicate {
			there, err := f.get(ctx, ack.Sequence)
			if err != nil {
				return err
			}
			to.pass(one.entry, there)
		} else if one.Repeatable {
			to.Numbers[one.ControlPlane] = one.number
		}
	case err := <-one.Err():
		var refused *jetstream.APIError
		if !errors.As(err, &refused) || refused.ErrorCode != errTooLarge {
			return err
		}
		f.losses.add(messageLost, 1, err)
		to.Numbers[one.ControlPlane] = max(to.Numbers[one.ControlPlane], one.number)
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// pass advances the numbers past an entry that the stream has already: as a record of this control plane,
// which has a number, or of another one, which metered the request earlier.
func (c *cursor) pass(one entry, there seenRecord) {
	number := c.Numbers[one.ControlPlane] + one.Lost
	if there.controlPlane == one.ControlPlane {
		number = max(number, there.number)
	}
	c.Numbers[one.ControlPlane] = number
}

// get reads a record of the stream.
func (f *forwarder) get(ctx context.Context, sequence uint64) (seenRecord, error) {
	stream, err := f.js.Stream(ctx, Stream)
	if err != nil {
		return seenRecord{}, err
	}
	message, err := stream.GetMsg(ctx, sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) { // deleted since
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
