package batches

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

type batchRow = projections.Row[domain.Batch]

// input opens the input file of the batch b.
func (s *session) input(ctx context.Context, b *domain.Batch) (blobs.Content, error) {
	row, ok := s.World.View().BatchFiles.Get(b.Input)
	if !ok {
		return nil, domain.Errorf(domain.NotFound, "the input file %s was deleted: upload it again, then create the "+
			"batch again", b.Input.ID())
	}
	files := row.State.Files
	return s.Blobs.Get(ctx, files.Prefix+slices.Sorted(maps.Keys(files.Sizes))[0])
}

// waitUntilActive waits while the account of the batch is suspended. It returns false when ctx is
// done.
func (s *session) waitUntilActive(ctx context.Context) bool {
	for {
		view := s.World.View()
		row, ok := view.Accounts.Get(domain.Name("accounts/" + s.name.Account()))
		if !ok || !row.State.Suspended() {
			return ctx.Err() == nil
		}
		select {
		case <-s.World.Changed(view.Position):
		case <-ctx.Done():
			return false
		}
	}
}

// whileInState returns a context that is done when the batch is no longer in the state of row, at
// the batch's expireTime, or when ctx is done.
func (s *session) whileInState(ctx context.Context, row *batchRow) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	rest := time.NewTimer(row.State.ExpireTime.Sub(s.Now()))
	go func() {
		defer rest.Stop()
		for {
			view := s.World.View()
			if now, ok := s.row(); !ok || now.State.State != row.State.State {
				cancel()
			}
			select {
			case <-ctx.Done():
				return
			case <-s.World.Changed(view.Position):
			case <-rest.C:
				cancel()
			}
		}
	}()
	return ctx, cancel
}

// validate validates the input file. When all requests are valid, the batch starts; otherwise it
// fails with the errors.
func (s *session) validate(ctx context.Context, row *batchRow) error {
	live, stop := s.whileInState(ctx, row)
	defer stop()
	if !s.waitUntilActive(live) {
		return s.overdue(ctx, row)
	}
	c := checker{endpoint: row.State.Endpoint, ids: map[string]int{}}
	content, err := s.input(live, &row.State)
	if err == nil {
		err = errors.Join(c.read(content), content.Close())
	}
	switch {
	case live.Err() != nil:
		return s.overdue(ctx, row)
	case err != nil:
		return s.unreadable(ctx, err)
	}
	if len(c.errors) > 0 {
		return s.record(ctx, domain.FailBatch{Failures: c.errors})
	}
	_, err = s.Gateway.Resolve(live, domain.Name(row.State.CreatedBy), row.State.Endpoint, c.model)
	switch domain.CodeOf(err) {
	case domain.OK:
		return s.record(ctx, domain.StartBatch{Total: c.total, Model: c.model})
	case domain.NotFound, domain.InvalidArgument, domain.PermissionDenied, domain.FailedPrecondition:
		return s.record(ctx, domain.FailBatch{Failures: []domain.BatchError{{Code: "model_not_found",
			Message: err.Error(), Param: "body.model", Line: c.models}}})
	}
	return err
}

// overdue fails a batch whose expireTime passed before its requests were validated.
func (s *session) overdue(ctx context.Context, row *batchRow) error {
	if ctx.Err() != nil || s.Now().Before(row.State.ExpireTime) {
		return ctx.Err()
	}
	return s.record(ctx, failure("batch_expired", "the batch could not start within its completion window: "+
		"create it again"))
}

// unreadable fails the batch if err says that the input file is lost or damaged. Otherwise it
// returns err.
func (s *session) unreadable(ctx context.Context, err error) error {
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.DataLoss:
		return s.record(ctx, failure("file_unreadable", "the input file cannot be read ("+err.Error()+
			"): upload it again, then create the batch again"))
	}
	return err
}

const (
	// flushInterval is the maximum time until the result of a response is durable. flushCount is the
	// maximum number of results that are not durable. After a crash, the requests of these results are
	// sent again.
	flushInterval = time.Second
	flushCount    = 256
	// reportInterval is the minimum time between two events with the progress of a batch. Such an
	// event also waits until at least 1% of all requests have ended since the last one. So a batch has
	// at most about a hundred of them.
	reportInterval = 2 * time.Second
	reports        = 100
	// maxFailures is the maximum number of attempts to send a request when the server or the engine
	// fails, and maxUnreachable the maximum when no replica responds. The response to the last
	// attempt is the result. The pauses between maxUnreachable attempts are longer in total than it
	// takes to detect a lost node and to replace its replicas.
	maxFailures    = 3
	maxUnreachable = 10
)

// process sends the requests that have no result. It returns when all have one, the batch is
// cancelled, or its expireTime has passed.
func (s *session) process(ctx context.Context, row *batchRow) error {
	t, err := s.results(ctx, nil)
	if err != nil {
		return err
	}
	live, stop := s.whileInState(ctx, row)
	defer stop()
	outcomes := make(chan stored)
	var unread error
	go func() {
		unread = s.feed(live, row, t.done, outcomes)
		close(outcomes)
	}()
	c := &collector{session: s, tally: &tally{done: maps.Clone(t.done), completed: t.completed, failed: t.failed,
		segments: t.segments}, total: row.State.Counts.Total, reported: s.Now()}
	failed := c.collect(ctx, outcomes, stop)
	switch {
	case failed != nil:
		return failed
	case ctx.Err() != nil:
		return ctx.Err()
	case unread != nil && live.Err() == nil:
		return s.unreadable(ctx, unread)
	case len(c.done) >= row.State.Counts.Total:
		return s.record(ctx, domain.FinalizeBatch{Completed: c.completed, Failed: c.failed})
	case !s.Now().Before(row.State.ExpireTime):
		return s.record(ctx, domain.FinalizeBatch{Completed: c.completed, Failed: c.failed, Overdue: true})
	}
	return nil // the batch was cancelled: the next step stores its results
}

// A collector stores the results of a running batch in segments, and records its progress.
type collector struct {
	*session
	*tally
	total    int
	buffer   []stored
	reported time.Time // time of the last event with the progress
	report   int       // number of results according to the last event with the progress
}

// collect receives results and stores them, until outcomes is closed. After an error it calls stop,
// and drops the results that follow.
func (c *collector) collect(ctx context.Context, outcomes <-chan stored, stop func()) (failed error) {
	ticker := time.NewTicker(flushInterval)
	defer ticker.Stop()
	flush := func() {
		if failed == nil && len(c.buffer) > 0 {
			if failed = c.flush(ctx); failed != nil {
				stop()
			}
		}
	}
	for {
		select {
		case one, ok := <-outcomes:
			if !ok {
				flush()
				return failed
			}
			c.buffer = append(c.buffer, one)
			if len(c.buffer) >= flushCount || len(c.done)+len(c.buffer) == c.total {
				flush()
			}
		case <-ticker.C:
			flush()
		}
	}
}

// flush stores the buffered results, even when ctx is done, and records the progress when it is
// due.
func (c *collector) flush(ctx context.Context) error {
	storing, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := c.store(storing, c.segments, c.buffer); err != nil {
		return err
	}
	c.segments++
	for _, one := range c.buffer {
		c.add(one)
	}
	c.buffer = nil
	if n := len(c.done); ctx.Err() == nil && n < c.total && n-c.report >= max(1, c.total/reports) &&
		c.Now().Sub(c.reported) >= reportInterval {
		c.report, c.reported = n, c.Now()
		return c.record(ctx, domain.ReportBatch{Completed: c.completed, Failed: c.failed})
	}
	return nil
}

// feed sends the requests that are not in done, and passes their results to outcomes. It returns
// when all of them have ended, or with an error when the input file cannot be read.
func (s *session) feed(ctx context.Context, row *batchRow, done map[int]bool, outcomes chan<- stored) error {
	var sending sync.WaitGroup
	defer sending.Wait()
	slots := make(chan struct{}, maxOfBatch)
	ended := false
	err := s.eachPending(ctx, &row.State, done, func(number int, q requestLine) error {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			ended = true
			return ctx.Err()
		}
		sending.Go(func() {
			defer func() { <-slots }()
			if one, ok := s.send(ctx, row, number, q); ok {
				outcomes <- one
			}
		})
		return nil
	})
	if ended {
		return nil
	}
	return err
}

// eachPending calls visit with each request of the input file that is not in done, and the number
// of its line. It stops when visit returns an error.
func (s *session) eachPending(ctx context.Context, b *domain.Batch, done map[int]bool,
	visit func(number int, q requestLine) error) error {
	content, err := s.input(ctx, b)
	if err != nil {
		return err
	}
	defer content.Close() // the file is only read, so Close cannot lose data
	for in := newLineReader(content); ; {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if done[in.number] {
			continue
		}
		q, _ := parseLine(line, b.Endpoint)
		if err := visit(in.number, q); err != nil {
			return err
		}
	}
}

// send sends a request until it has a result. ok is false when ctx is done first.
func (s *session) send(ctx context.Context, row *batchRow, number int, q requestLine) (outcome stored, ok bool) {
	key, id := domain.Name(row.State.CreatedBy), requestID(s.event, number)
	for failures := 0; s.waitUntilActive(ctx); {
		target, err := s.Gateway.Resolve(ctx, key, row.State.Endpoint, q.model)
		if err != nil {
			target = domain.Name(q.model) // Send then returns a response with the error of Resolve
		}
		leave, ok := s.gates.enter(ctx, route{key.Account(), target})
		if !ok {
			return outcome, false
		}
		r := s.Gateway.Send(ctx, Request{Key: key, ID: id, Trace: s.created.Trace, Path: row.State.Endpoint,
			Body: q.body})
		leave(r.Waits || r.Unreachable)
		switch {
		case ctx.Err() != nil && r.Status != 200:
			return outcome, false
		case r.Waits:
			continue
		case r.Unreachable && failures+1 < maxUnreachable:
			failures++ // the gate then pauses before the next attempt
			continue
		case r.Failed && failures+1 < maxFailures:
			failures++
			if !eventlog.Sleep(ctx, firstPause<<failures) {
				return outcome, false
			}
			continue
		}
		return stored{Line: number, Result: result{ID: resultID(s.event, number), CustomID: q.customID,
			Response: &answer{StatusCode: r.Status, RequestID: id, Body: r.Body}}}, true
	}
	return outcome, false
}

// conclude stores the output file and the error file, and ends the batch.
func (s *session) conclude(ctx context.Context, row *batchRow) error {
	b := &row.State
	if b.StartTime == nil { // the batch was cancelled before a request was sent
		return s.record(ctx, domain.EndBatch{})
	}
	t, err := s.results(ctx, nil)
	if err != nil {
		return err
	}
	end := domain.EndBatch{Completed: t.completed, Failed: t.failed}
	for _, file := range []struct {
		which string
		name  *domain.Name
		lines func(add func(result) error) error
	}{
		{domain.BatchResultFiles[0], &end.Output, func(add func(result) error) error {
			return s.eachResult(ctx, true, add)
		}},
		{domain.BatchResultFiles[1], &end.Errors, func(add func(result) error) error {
			return errors.Join(s.eachResult(ctx, false, add), s.missing(ctx, b, t.done, add))
		}},
	} {
		prefix, base := blobs.BatchOutputPrefix(s.name, s.event, file.which), file.which+".jsonl"
		n, size, err := s.write(ctx, prefix+base, file.lines)
		if err != nil {
			return err
		}
		if n == 0 {
			continue // without results there is no such file; the reconciler deletes the empty blob
		}
		name := domain.NewName(s.name.Account(), domain.BatchFiles.Collection, fileID(s.name.ID(), file.which))
		spec := domain.BatchFileSpec{Filename: s.name.ID() + "-" + base, Purpose: domain.PurposeBatchOutput, Batch: s.name,
			Files:     domain.Files{Prefix: prefix, Sizes: map[string]int64{base: size}},
			CreatedBy: b.CreatedBy}
		if err := s.do(ctx, domain.Intend(domain.BatchFiles, name,
			domain.Command[domain.BatchFile](domain.CreateBatchFile{BatchFileSpec: spec}))); err != nil {
			return err
		}
		*file.name = name
	}
	return s.record(ctx, end)
}

// fileID returns the ID of a result file of a batch. The argument which is an element of
// domain.BatchResultFiles and says whether it is the output file or the error file.
func fileID(batch, which string) string {
	const prefix = "batch-"
	if len(batch) > len(prefix) && batch[:len(prefix)] == prefix {
		batch = batch[len(prefix):]
	}
	return "file-" + batch + "-" + which
}

// eachResult calls add with the results of the requests that succeeded or, when succeeded is false,
// of those that failed.
func (s *session) eachResult(ctx context.Context, succeeded bool, add func(result) error) error {
	_, err := s.results(ctx, func(one stored) error {
		if one.Result.succeeded() == succeeded {
			return add(one.Result)
		}
		return nil
	})
	return err
}

// missing calls add with a result for each request that has no response.
func (s *session) missing(ctx context.Context, b *domain.Batch, done map[int]bool, add func(result) error) error {
	if len(done) >= b.Counts.Total {
		return nil
	}
	why := resultMissing{"batch_cancelled", "the batch was cancelled before the request was complete"}
	if b.State == domain.BatchFinalizingState {
		why = resultMissing{"batch_expired", "the completion window ended before the request was complete"}
	}
	return s.eachPending(ctx, b, done, func(number int, q requestLine) error {
		return add(result{ID: resultID(s.event, number), CustomID: q.customID, Error: &why})
	})
}
