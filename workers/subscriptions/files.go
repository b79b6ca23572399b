package subscriptions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"anneal/blobs/delivery"
	"anneal/blobs/external"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
)

const (
	// maxFileBytes is the number of bytes at which a file is complete. Even with one more event of
	// eventlog.MaxEvent bytes, the file is written to the object store in a single part.
	maxFileBytes = 12 << 20
	readEvents   = 2048 // maximum number of events in one read
	// maxPageBytes is the size of the data at which a read of old events ends; maxSmallPage is that of
	// other reads.
	maxPageBytes = 2 << 20
	maxSmallPage = maxSmallFile / 2
	writeTimeout = 2 * time.Minute // a slot is taken meanwhile
	// slotWait is the maximum time for which a subscription that waits for new events keeps a slot that
	// others need.
	slotWait = time.Second
)

// files delivers events as files in an object store. The range of positions of a file is recorded
// in the log before the file is written, and is the file's name. So every attempt to write it, by
// any process, writes the same object, and each event is in exactly one file.
type files struct {
	*session
	source  source           // the position up to which pages were used
	reader  *reader          // of the events after page; nil without one
	page    page             // the events that content does not have yet
	written uint64           // last position in the newest file that this process has written
	small   bytes.Buffer     // content of a small file
	content *bytes.Buffer    // content of the file: small or slot
	slot    *bytes.Buffer    // buffer of the slot that the subscription has; nil without one
	cut     bool             // the file ends before it is full, because there is no slot for it
	file    domain.EventFile // range and number of the events in content
	columns bool             // rows is filled, because the files are Parquet files
	rows    []parquetRow     // rows of the events in content: see parquetRowOfEvent
	oldest  time.Time        // time of the oldest event in content
}

func newFiles(s *session) *files {
	f := &files{session: s}
	f.content = &f.small
	return f
}

// run writes files until ctx is done or the subscription was disabled. It returns an error after
// which the caller tries again.
func (f *files) run(ctx context.Context) error {
	defer func() {
		f.stopReading()
		f.releaseSlot()
	}()
	for ctx.Err() == nil {
		row, ok := f.row()
		if !ok {
			return nil
		}
		if err := f.step(ctx, &row.State); err != nil {
			return f.explain(ctx, err)
		}
	}
	return ctx.Err()
}

// explain shows in the subscription's status why no file was written. When the user must correct
// something, it disables the subscription. Otherwise it returns an error, after which the caller
// tries again.
func (f *files) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	state := delivery.State{LastError: "the server cannot read the events or write the file, and tries " +
		"again", LastFailure: f.Now()}
	var fault *domain.Error
	if errors.As(err, &fault) {
		state.LastError = fault.Message
		switch fault.Code {
		case domain.InvalidArgument, domain.FailedPrecondition, domain.NotFound, domain.PermissionDenied:
			return f.disable(ctx, fault.Code, "%s; correct this, then resume the subscription", fault.Message)
		}
	}
	return errors.Join(err, delivery.Save(ctx, f.Blobs, f.name, f.event, &state))
}

// step makes one step of the delivery. If the file that was recorded last was not written yet, it
// writes that file. Otherwise it reads events, and records the next file when it is complete.
func (f *files) step(ctx context.Context, s *domain.Subscription) error {
	at := delivery.Cursor{Position: f.start}
	f.columns = s.Files.Format == domain.EventFilesParquet
	if s.File != nil {
		at = delivery.Cursor{Position: s.File.Last, EventID: s.File.EventID}
		if f.written != s.File.Last {
			return f.writeRecorded(ctx, s)
		}
	}
	f.begin(s, at)
	grown, err := f.read(ctx)
	if err != nil {
		return err
	}
	wait := saveIdleEvery
	if f.file.Events > 0 {
		wait = f.oldest.Add(f.Policy.FileInterval).Sub(f.Now())
	}
	if f.slot != nil { // others may need the slot
		wait = min(wait, slotWait)
	}
	if f.file.Events > 0 && (f.full() || grown != nil && (wait <= 0 || f.slot != nil && f.slots.contended())) {
		return f.record(ctx, domain.RecordEventFile{EventFile: f.file, After: lastOf(s)})
	}
	if grown == nil {
		return nil // the next call of read may find more events
	}
	timer := time.NewTimer(max(wait, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-grown:
	case <-timer.C:
	}
	return nil
}

// begin prepares content for the file whose events follow cursor. It keeps content that already is
// this file. When content was the previous file, it empties content and continues to read.
// Otherwise it empties content and reads from cursor.
func (f *files) begin(s *domain.Subscription, cursor delivery.Cursor) {
	if f.source.session != nil && f.file.First == cursor.Position+1 && f.source.at >= cursor.Position {
		return
	}
	if f.source.session == nil || f.file.Last != cursor.Position || f.file.EventID != cursor.EventID {
		f.stopReading()
		f.source = source{session: f.session, spec: s.SubscriptionSpec, at: cursor.Position, last: cursor}
	}
	f.newContent(domain.EventFile{First: cursor.Position + 1})
}

// newContent makes content that of a new file.
func (f *files) newContent(file domain.EventFile) {
	if f.slot != nil && f.slots.contended() {
		f.stopReading()
		f.releaseSlot()
	}
	f.content.Reset()
	clear(f.rows)
	f.rows = f.rows[:0]
	f.file, f.oldest, f.cut = file, time.Time{}, false
}

// useSlot makes a slot's buffer the content.
func (f *files) useSlot(buffer *bytes.Buffer) {
	_, _ = buffer.Write(f.content.Bytes()) // never fails
	f.small = bytes.Buffer{}
	f.slot, f.content = buffer, buffer
}

// releaseSlot gives the slot back, with the content, if the subscription has one.
func (f *files) releaseSlot() {
	if f.slot != nil {
		f.slots.release(f.slot)
		f.slot, f.content, f.rows = nil, &f.small, nil
	}
}

// makeSpace makes space for a line of n bytes in the content. It reports false when the file must end
// before the line.
func (f *files) makeSpace(ctx context.Context, n int) (bool, error) {
	if f.slot != nil || f.content.Len()+n <= maxSmallFile {
		return true, nil
	}
	buffer, ok := f.slots.tryTake()
	if !ok {
		if f.file.Events > 0 {
			f.cut = true
			return false, nil
		}
		var err error
		if buffer, err = f.slots.take(ctx); err != nil {
			return false, err
		}
	}
	f.useSlot(buffer)
	return true, nil
}

func lastOf(s *domain.Subscription) uint64 {
	if s.File == nil {
		return 0
	}
	return s.File.Last
}

// read adds events to content until the file is full or the log has no more. grown is closed when
// the log may have more events; it is nil when the log may have them already.
func (f *files) read(ctx context.Context) (grown <-chan struct{}, err error) {
	for !f.full() {
		if len(f.page.events) == 0 {
			if err := f.nextPage(ctx); err != nil {
				return nil, err
			}
		}
		used := 0
		for used < len(f.page.events) && !f.full() {
			if ok, err := f.makeSpace(ctx, len(f.page.lines[used])+1); err != nil {
				return nil, err
			} else if !ok {
				break
			}
			f.add(f.page.events[used], f.page.lines[used])
			used++
		}
		f.page.events, f.page.lines = f.page.events[used:], f.page.lines[used:]
		if !f.oldest.IsZero() {
			f.session.oldest.Store(f.oldest.UnixNano())
		}
		if len(f.page.events) > 0 { // the remaining events are for the next file
			f.source.at, f.source.last = f.file.Last, delivery.Cursor{Position: f.file.Last, EventID: f.file.EventID}
			break
		}
		if f.source = f.page.after; f.page.grown != nil {
			return f.page.grown, nil
		}
	}
	return nil, nil
}

// full reports whether content has as many events as a file may have.
func (f *files) full() bool {
	return f.cut || f.file.Events >= f.Policy.FileEvents || f.content.Len() >= maxFileBytes
}

// nextPage sets page to the next page of the reader. If there is no reader, it starts one.
func (f *files) nextPage(ctx context.Context) error {
	for {
		if f.reader == nil {
			size := maxSmallPage
			if f.slot == nil && f.source.isOld() {
				buffer, err := f.slots.take(ctx)
				if err != nil {
					return err
				}
				f.useSlot(buffer)
			}
			if f.slot != nil {
				size = maxPageBytes
			}
			f.reader = f.source.readAhead(ctx, size, f.encodeAll)
		}
		select {
		case p, ok := <-f.reader.pages:
			if ok && p.err == nil {
				f.page = p
				return nil
			}
			f.stopReading()
			if ok {
				return p.err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// stopReading stops the reader, and discards events that were not added to content.
func (f *files) stopReading() {
	if f.reader != nil {
		f.reader.stop()
	}
	f.reader, f.page = nil, page{}
}

// encodeAll encodes events concurrently, because encoding takes most of the time when many old
// events are delivered.
func (f *files) encodeAll(events []eventlog.Event) ([][]byte, error) {
	const chunk = 128
	lines := make([][]byte, len(events))
	failed := make([]error, (len(events)+chunk-1)/chunk)
	var all sync.WaitGroup
	for n := range failed {
		all.Go(func() {
			for i := n * chunk; i < min((n+1)*chunk, len(events)) && failed[n] == nil; i++ {
				lines[i], failed[n] = f.encode(events[i])
			}
		})
	}
	all.Wait()
	return lines, errors.Join(failed...)
}

// add appends an event to content. line is its encoding.
func (f *files) add(e eventlog.Event, line []byte) {
	f.content.Write(line)
	f.content.WriteByte('\n')
	if f.columns {
		f.rows = append(f.rows, parquetRowOfEvent(e))
	}
	if f.oldest.IsZero() {
		f.oldest = e.Time
	}
	f.file.Last, f.file.EventID, f.file.Events = e.Position, e.ID, f.file.Events+1
}

// writeRecorded writes the file that was recorded last. If another process recorded it, content
// does not have its events, and they are read from the log again.
func (f *files) writeRecorded(ctx context.Context, s *domain.Subscription) error {
	recorded := *s.File
	known, err := f.confirm(ctx, delivery.Cursor{Position: recorded.Last, EventID: recorded.EventID})
	if err != nil {
		return err
	}
	if !known {
		return f.mismatch(ctx, delivery.Cursor{Position: recorded.Last, EventID: recorded.EventID},
			"create another subscription that writes to another directory")
	}
	if f.file != recorded {
		if err := f.readAgain(ctx, s, recorded); err != nil {
			return err
		}
	}
	content := f.content.Bytes()
	if s.Files.Format == domain.EventFilesParquet {
		if content, err = parquetOf(content, f.rows); err != nil {
			return err
		}
	}
	if err := f.write(ctx, s.Files, nameOf(recorded, s.Files.Format), content); err != nil {
		return err
	}
	f.written = recorded.Last
	if f.slot != nil && (f.slots.contended() || f.source.session == nil || !f.source.isOld()) {
		f.stopReading()
		f.releaseSlot()
	}
	f.session.oldest.Store(0)
	f.Metrics.wrote()
	return nil
}

// readAgain reads the events of a recorded file from the log into content.
func (f *files) readAgain(ctx context.Context, s *domain.Subscription, recorded domain.EventFile) error {
	f.stopReading() // the source may be at a position before or after the recorded file
	f.source = source{}
	f.newContent(domain.EventFile{First: recorded.First})
	if f.slot == nil {
		buffer, err := f.slots.take(ctx)
		if err != nil {
			return err
		}
		f.useSlot(buffer)
	}
	in := source{session: f.session, spec: s.SubscriptionSpec}
	for e, err := range f.Log.Read(ctx, in.subjects(), recorded.First-1) {
		if err != nil {
			return err
		}
		if e.Position > recorded.Last {
			break
		}
		if in.selects(e) {
			line, err := f.encode(e)
			if err != nil {
				return err
			}
			f.add(e, line)
		}
	}
	if f.file != recorded {
		return fmt.Errorf("the log has other events from position %d to %d than when the file was recorded: %d events "+
			"instead of %d",
			recorded.First, recorded.Last, f.file.Events, recorded.Events)
	}
	return nil
}

// nameOf returns the name of a file, which has its first and last position.
func nameOf(file domain.EventFile, format string) string {
	suffix := "jsonl"
	if format == domain.EventFilesParquet {
		suffix = "parquet"
	}
	return fmt.Sprintf("%020d-%020d.%s", file.First, file.Last, suffix)
}

// write writes content to the object with a name in the directory of the subscription.
func (f *files) write(ctx context.Context, target *domain.EventFiles, name string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	at, ok := domain.ParseObjectURL(target.ExternalURL)
	if !ok {
		return domain.Errorf(domain.InvalidArgument, "files.externalUrl %s", domain.ObjectURLRule)
	}
	values, err := secrets.Resolver{Rows: f.World, Open: f.Open,
		By: secrets.Reader{Purpose: secrets.WriteSubscription, Resource: f.name}}.Values(ctx, f.name.Account(),
		"files.credentialsSecret", []string{target.CredentialsSecret})
	if err != nil {
		return err
	}
	for _, value := range values {
		credentials, wrong := domain.ParseStoreCredentials(domain.SecretValue(value))
		if len(wrong) > 0 {
			return domain.Errorf(domain.InvalidArgument, "the value of secret %s %s: %s", target.CredentialsSecret,
				domain.StoreCredentialsRule, wrong[0])
		}
		bucket, err := external.Open(ctx, at, &credentials, f.Store)
		if err != nil {
			return err
		}
		return errors.Join(bucket.Write(ctx, at.Key+name, bytes.NewReader(content)), bucket.Close())
	}
	return fmt.Errorf("secret %s has no value: set its value", target.CredentialsSecret)
}
