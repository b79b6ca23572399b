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
	// maxFileBytes is the number of bytes after which a file has no further event. A file with one
	// more event of eventlog.MaxEvent bytes is still below the size from which the object store gets
	// an object in several parts.
	maxFileBytes = 12 << 20
	readEvents   = 2048 // events that are read at once, with at most maxFileBytes and one event
	writeTimeout = 10 * time.Minute
)

// files writes files of events. The range of a file is recorded in the log before the file is written,
// and names the file. So every attempt to write it, by any process, writes the same object, and each
// event is in exactly one file.
type files struct {
	*session
	source  source  // the position up to which pages were used
	reader  *reader // of the events after page; nil without one
	page    page    // the events that content does not have yet
	written uint64  // last position of the newest file that was written
	content bytes.Buffer
	file    domain.EventFile // what content has
	oldest  time.Time        // time of the first event in content
}

// run writes files until ctx is done or the subscription was disabled. It returns an error after a
// failure that a retry may resolve.
func (f *files) run(ctx context.Context) error {
	defer f.stopReading()
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

// explain stores why no file was written, and disables the subscription if its user must resolve that.
// Otherwise it returns the error.
func (f *files) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	state := delivery.State{LastError: "this server cannot read the events or write the file", LastFailure: f.Now()}
	var fault *domain.Error
	if errors.As(err, &fault) {
		state.LastError = fault.Message
		switch fault.Code {
		case domain.InvalidArgument, domain.FailedPrecondition, domain.NotFound, domain.PermissionDenied:
			return f.disable(ctx, fault.Code, "%s; then resume the subscription", fault.Message)
		}
	}
	return errors.Join(err, delivery.Save(ctx, f.Blobs, f.name, f.event, &state))
}

// step writes the recorded file unless it was written, then reads events, and records the next file
// when it is complete.
func (f *files) step(ctx context.Context, s *domain.Subscription) error {
	at := delivery.Cursor{Position: f.start}
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
	if f.file.Events > 0 && (f.full() || grown != nil && wait <= 0) {
		return f.record(ctx, domain.RecordEventFile{EventFile: f.file, After: lastOf(s)})
	}
	if grown == nil {
		return nil // there may be more events
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

// begin makes content the events after at: it continues with content, or with the events after the file
// that content was, or reads from there.
func (f *files) begin(s *domain.Subscription, at delivery.Cursor) {
	if f.source.session != nil && f.file.First == at.Position+1 && f.source.at >= at.Position {
		return
	}
	if f.source.session == nil || f.file.Last != at.Position || f.file.EventID != at.EventID {
		f.stopReading()
		f.source = source{session: f.session, spec: s.SubscriptionSpec, at: at.Position, last: at}
	}
	f.content.Reset()
	f.file, f.oldest = domain.EventFile{First: at.Position + 1}, time.Time{}
}

func lastOf(s *domain.Subscription) uint64 {
	if s.File == nil {
		return 0
	}
	return s.File.Last
}

// read adds events to content until the file is full or there are no more. grown is closed when there
// may be more; it is nil when there may be more already.
func (f *files) read(ctx context.Context) (grown <-chan struct{}, err error) {
	for !f.full() {
		if len(f.page.events) == 0 {
			if err := f.nextPage(ctx); err != nil {
				return nil, err
			}
		}
		used := 0
		for used < len(f.page.events) && !f.full() {
			f.add(f.page.events[used], f.page.lines[used])
			used++
		}
		f.page.events, f.page.lines = f.page.events[used:], f.page.lines[used:]
		if !f.oldest.IsZero() {
			f.session.oldest.Store(f.oldest.UnixNano())
		}
		if len(f.page.events) > 0 { // the rest is for the next file
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
	return f.file.Events >= f.Policy.FileEvents || f.content.Len() >= maxFileBytes
}

// nextPage sets page to the next page of the reader, which it starts if there is none.
func (f *files) nextPage(ctx context.Context) error {
	for {
		if f.reader == nil {
			f.reader = f.source.readAhead(ctx, f.encodeAll)
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

// stopReading discards the pages that content does not have yet.
func (f *files) stopReading() {
	if f.reader != nil {
		f.reader.stop()
	}
	f.reader, f.page = nil, page{}
}

// encodeAll encodes events concurrently, because a backfill is as fast as its encoding.
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

// add appends an event, which is encoded as line, to content.
func (f *files) add(e eventlog.Event, line []byte) {
	f.content.Write(line)
	f.content.WriteByte('\n')
	if f.oldest.IsZero() {
		f.oldest = e.Time
	}
	f.file.Last, f.file.EventID, f.file.Events = e.Position, e.ID, f.file.Events+1
}

// writeRecorded writes the file whose range is recorded. It reads the events again unless content has
// them, which is the case when this process recorded the range.
func (f *files) writeRecorded(ctx context.Context, s *domain.Subscription) error {
	recorded := *s.File
	known, err := f.confirm(ctx, delivery.Cursor{Position: recorded.Last, EventID: recorded.EventID})
	if err != nil {
		return err
	}
	if !known {
		return f.mismatch(ctx, delivery.Cursor{Position: recorded.Last, EventID: recorded.EventID},
			"create another subscription with another directory")
	}
	if f.file != recorded {
		if err := f.readAgain(ctx, s, recorded); err != nil {
			return err
		}
	}
	content := f.content.Bytes()
	if s.Files.Format == domain.EventFilesParquet {
		if content, err = parquetOf(content); err != nil {
			return err
		}
	}
	if err := f.write(ctx, s.Files, nameOf(recorded, s.Files.Format), content); err != nil {
		return err
	}
	f.written = recorded.Last
	f.session.oldest.Store(0)
	f.Metrics.wrote()
	return nil
}

// readAgain reads the events of a recorded file into content.
func (f *files) readAgain(ctx context.Context, s *domain.Subscription, recorded domain.EventFile) error {
	f.content.Reset()
	f.file = domain.EventFile{First: recorded.First}
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
		return fmt.Errorf("the log has other events between positions %d and %d than when the file was recorded: %d, not %d",
			recorded.First, recorded.Last, f.file.Events, recorded.Events)
	}
	return nil
}

// nameOf returns the name of a file: its first and last position.
func nameOf(file domain.EventFile, format string) string {
	suffix := "jsonl"
	if format == domain.EventFilesParquet {
		suffix = "parquet"
	}
	return fmt.Sprintf("%020d-%020d.%s", file.First, file.Last, suffix)
}

// write writes content to an object of the directory.
func (f *files) write(ctx context.Context, to *domain.EventFiles, name string, content []byte) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	at, ok := domain.ParseObjectURL(to.ExternalURL)
	if !ok {
		return domain.Errorf(domain.InvalidArgument, "files.externalUrl %s", domain.ObjectURLRule)
	}
	values, err := secrets.Resolver{Rows: f.World, Open: f.Open,
		By: secrets.Reader{Purpose: secrets.WriteSubscription, Resource: f.name}}.Values(ctx, f.name.Account(),
		"files.credentialsSecret", []string{to.CredentialsSecret})
	if err != nil {
		return err
	}
	for _, value := range values {
		credentials, wrong := domain.ParseStoreCredentials(domain.SecretValue(value))
		if len(wrong) > 0 {
			return domain.Errorf(domain.InvalidArgument, "the value of %s %s: %s", to.CredentialsSecret,
				domain.StoreCredentialsRule, wrong[0])
		}
		bucket, err := external.Open(ctx, at, &credentials, f.Store)
		if err != nil {
			return err
		}
		return errors.Join(bucket.Write(ctx, at.Key+name, bytes.NewReader(content)), bucket.Close())
	}
	return fmt.Errorf("%s has no value", to.CredentialsSecret)
}
