package tasks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"reflect"
	"slices"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/domain/rows"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
)

// A Deriver writes the rows of derived datasets: those of a source dataset that match a filter, one
// side of a split, or all rows. Its memory does not grow with the size of the source. Several
// processes may derive the same dataset, because they write the same content to the same keys and
// only the first result is recorded.
type Deriver struct {
	Log    eventlog.Log
	World  eventlog.Rows
	Blobs  *blobs.Store
	Now    func() time.Time
	Filter func(text string) (func(row []byte) (bool, error), error)
	Count  func(text string) int // counts the tokens of a text; nil counts one token for every four bytes
	// Progress is called while a dataset is derived, with the number of the source's rows that were
	// read (done) and the number of all its rows (total). When the derivation has ended, total is 0.
	Progress func(dataset domain.Name, done, total int64)
}

const (
	deriverName      = "dataset-derivation"
	derivedFile      = "rows.jsonl"
	progressInterval = 10_000 // number of source rows between two calls of Progress
)

// Handle registers the Deriver for the events of datasets.
func (d Deriver) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, deriverName, "events.*.datasets.*", d.Derive, d.giveUp)
}

// Derive derives the rows of the dataset that an event creates. It ignores datasets that are not
// derived, and all other events.
func (d Deriver) Derive(ctx context.Context, e eventlog.Event) error {
	from, err := derivationOf(e)
	if err != nil || from == nil {
		return err
	}
	if err := d.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := d.World.Row(e.Name)
	dataset, ok := state.(domain.Dataset)
	if !ok || !dataset.Filling() || !reflect.DeepEqual(dataset.From, from) {
		return nil // the dataset was derived, failed or deleted after the event
	}
	source, err := d.source(e.Name, *from)
	var fill domain.Command[domain.Dataset]
	if err == nil {
		defer d.Progress(e.Name, 0, 0)
		fill, err = d.make(ctx, e.Name, *from, source, blobs.DerivedPrefix(e.Name, e.ID))
	}
	var failure *domain.Error
	if errors.As(err, &failure) && isUserError(failure.Code) {
		fill, err = domain.FailFill{Status: domain.StatusOf(failure)}, nil
	}
	if err != nil {
		return err
	}
	return d.record(ctx, e, fill)
}

// derivationOf returns the derivation in an event that creates a derived dataset; nil for all other
// events.
func derivationOf(e eventlog.Event) (*domain.Derivation, error) {
	created, err := eventOf[domain.DatasetCreated](e, "dataset.created.v1")
	if created == nil {
		return nil, err
	}
	return created.From, nil
}

// isUserError reports whether an error with this code says that the user must correct something, so
// that a retry would fail too.
func isUserError(code domain.Code) bool {
	return code == domain.InvalidArgument || code == domain.FailedPrecondition || code == domain.NotFound
}

// source returns the source dataset of a derivation, or an error when the source was changed or
// deleted after the derivation was requested.
func (d Deriver) source(name domain.Name, from domain.Derivation) (domain.Dataset, error) {
	state, _ := d.World.Row(from.Source)
	source, ok := state.(domain.Dataset)
	if !ok || source.State != domain.DatasetReady || source.Files.Prefix != from.Prefix ||
		from.Source.Account() != name.Account() {
		return domain.Dataset{}, sourceGone(from.Source)
	}
	return source, nil
}

func sourceGone(source domain.Name) error {
	return domain.Errorf(domain.FailedPrecondition, "the source dataset %s was deleted before its rows were read: "+
		"delete this dataset, and create it again from an existing dataset", source)
}

// make writes the rows of a derived dataset and returns the command that records the result.
func (d Deriver) make(ctx context.Context, name domain.Name, from domain.Derivation, source domain.Dataset,
	directory string) (domain.Command[domain.Dataset], error) {
	s := &rowFilter{Deriver: d, name: name, source: source, checker: rows.NewChecker(source.Format)}
	s.checker.Count = d.Count
	if err := s.prepare(from); err != nil {
		return nil, err
	}
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		err := s.run(ctx, writer)
		writer.CloseWithError(err)
		ended <- err
	}()
	size, err := d.Blobs.Put(ctx, directory+derivedFile, reader)
	reader.CloseWithError(errUnread)
	if cause := <-ended; cause != nil && !errors.Is(cause, errUnread) {
		err = cause // return the error of the method run, which made Put fail too
	}
	if domain.CodeOf(err) == domain.NotFound {
		err = sourceGone(from.Source)
	}
	if err != nil {
		return nil, err
	}
	facts, violations, more := s.checker.Result()
	if s.checker.MinRows > facts.ExampleCount && s.kept < int64(s.checker.MinRows) {
		return nil, domain.Errorf(domain.InvalidArgument, "%d of the %d rows of %s match, and at least %d are "+
			"needed: delete this dataset, and create it again with another filter or split",
			s.kept, s.read, from.Source, s.checker.MinRows)
	}
	if len(violations) > 0 {
		return nil, rows.InvalidRows(violations, more)
	}
	files := domain.Files{Prefix: directory, Sizes: map[string]int64{derivedFile: size}}
	return domain.FillDataset{Files: files, DatasetStats: facts}, nil
}

var errUnread = errors.New("the file store did not accept all of the derived rows")

// A rowFilter selects and writes the rows of a derived dataset.
type rowFilter struct {
	Deriver
	name       domain.Name
	source     domain.Dataset
	keep       func(row []byte) (bool, error)
	checker    *rows.Checker // validates the selected rows
	read, kept int64
}

// prepare sets keep, the function that selects rows: by a filter, by one side of a split, or all of
// them.
func (s *rowFilter) prepare(from domain.Derivation) (err error) {
	switch {
	case from.Split != nil:
		chooser := rows.NewChooser(*from.Split)
		s.checker.MinRows = 1 // an evaluation needs only one row; a training job checks its own minimum
		s.keep = func([]byte) (bool, error) { return chooser.Next(), nil }
	case from.Filter != "":
		s.keep, err = s.Filter(from.Filter)
	default:
		s.keep = func([]byte) (bool, error) { return true, nil }
	}
	return err
}

// run writes the selected rows of all files, in the order of the files' names, one row per line.
func (s *rowFilter) run(ctx context.Context, to io.Writer) error {
	out := bufio.NewWriterSize(to, 256<<10)
	for _, file := range slices.Sorted(maps.Keys(s.source.Files.Sizes)) {
		content, err := s.Blobs.Get(ctx, s.source.Files.Prefix+file)
		if err != nil {
			return err
		}
		err = rows.Lines(content, func(line int, text []byte,
			_ bool) error {
			return s.line(ctx, file, line, text, out)
		})
		if err := errors.Join(err, content.Close()); err != nil {
			return err
		}
	}
	return out.Flush()
}

func (s *rowFilter) line(ctx context.Context, file string, line int, text []byte, out *bufio.Writer) error {
	if len(bytes.TrimSpace(text)) == 0 {
		return nil
	}
	if s.read%progressInterval == 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		s.Progress(s.name, s.read, s.source.ExampleCount.Int64())
	}
	s.read++
	keep, err := s.keep(text)
	switch {
	case err != nil:
		return domain.Errorf(domain.InvalidArgument, "%s:%d: the filter cannot be applied to this row: %s", file, line,
			err)
	case !keep:
		return nil
	}
	s.kept++
	s.checker.Row(file, line, text)
	_, err = out.Write(text)
	return errors.Join(err, out.WriteByte('\n'))
}

// record records the result of a derivation, unless the dataset was deleted or another process has
// recorded a result. In these cases the reconciler deletes the written files.
func (d Deriver) record(ctx context.Context, e eventlog.Event, result domain.Command[domain.Dataset]) error {
	request := eventlog.Reaction(e, "task/"+deriverName, d.Now())
	_, err := eventlog.Do(ctx, d.Log, d.World, request, domain.Intend(domain.Datasets, e.Name, result))
	switch domain.CodeOf(err) {
	case domain.NotFound, domain.FailedPrecondition:
		return nil
	}
	return err
}

// giveUp records that the derivation failed in every attempt. The recorded message contains the
// cause only if it is a domain.Error, because other errors may contain paths of this machine.
func (d Deriver) giveUp(ctx context.Context, e eventlog.Event, cause error) error {
	from, err := derivationOf(e)
	if err != nil || from == nil {
		return nil
	}
	code, why := domain.Internal, "internal error, see the server's log"
	var failure *domain.Error
	if errors.As(cause, &failure) {
		code, why = failure.Code, failure.Message
	}
	status := domain.Status{Code: code.String(), Message: "the rows could not be derived (" + why +
		"): delete this dataset and create it again"}
	return d.record(context.WithoutCancel(ctx), e, domain.FailFill{Status: status})
}
