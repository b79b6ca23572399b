package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"time"

	"anneal/api/rest"
	"anneal/domain"
	"anneal/internal/datadir"
	"anneal/projections"
)

// rebuilds implements rest.Rebuilds. It runs rebuilds of the world, one at a time, and records
// their results in a file of the data directory.
type rebuilds struct {
	world        *projections.World
	log          projections.Reader
	dir          datadir.Dir
	logger       *slog.Logger
	controlPlane string
	run          func(func(context.Context) error) // runs a function in the background until the server stops
	rebuild      func(ctx context.Context, w *projections.World, log projections.Reader,
		progress func(folded, end uint64)) (projections.Comparison, error) // projections.Rebuild

	mu     sync.Mutex
	all    []rest.Rebuild // the running rebuild, if any, and the results of past ones, newest first
	cancel context.CancelFunc
}

const (
	rebuildsFile = "rebuilds.json"
	maxRebuilds  = 16 // maximum number of rebuilds whose results are kept
	loggedNames  = 10 // maximum number of resources that differ in a log line
	// staleArchive is the name of the file that makes the next start write the archive again.
	staleArchive = "archive.stale"
)

var errCancelled = domain.Errorf(domain.Canceled, "the operator cancelled the rebuild")

// openRebuilds reads the results of earlier rebuilds. A rebuild that was running is recorded as
// failed.
func openRebuilds(s *Server) (err error) {
	s.rebuilds, err = newRebuilds(&rebuilds{world: s.world, log: s.events.Log(), dir: s.dir, controlPlane: s.id,
		rebuild: projections.Rebuild,
		logger:  s.logger.With("part", "rebuild"),
		run:     func(run func(context.Context) error) { s.services.start("rebuild", run) }})
	return err
}

func newRebuilds(r *rebuilds) (*rebuilds, error) {
	content, err := os.ReadFile(r.dir.Path(rebuildsFile))
	switch {
	case errors.Is(err, os.ErrNotExist):
		return r, nil
	case err == nil:
		err = json.Unmarshal(content, &r.all)
	}
	for i := range r.all {
		if r.all[i].State == rest.RebuildRunning {
			end(&r.all[i], rest.RebuildFailed, domain.Errorf(domain.Aborted, "the server stopped during the rebuild"))
		}
	}
	if err != nil {
		err = fmt.Errorf("%s cannot be read: remove it to start without the results of earlier rebuilds: %w",
			r.dir.Path(rebuildsFile),
			err)
	}
	return r, err
}

func end(one *rest.Rebuild, state string, err error) {
	one.State, one.EndTime = state, new(time.Now().UTC())
	if err != nil {
		one.Status = domain.Status{Code: domain.CodeOf(err).String(), Message: err.Error()}
	}
}

func (r *rebuilds) running() bool { return len(r.all) > 0 && r.all[0].State == rest.RebuildRunning }

func (r *rebuilds) Start() (rest.Rebuild, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running() {
		return rest.Rebuild{}, domain.Errorf(domain.FailedPrecondition, "rebuild %s is running: wait until it ends, "+
			"or cancel it with `anneal world cancel`", r.all[0].ID)
	}
	now := time.Now().UTC()
	one := rest.Rebuild{ID: "r" + strconv.FormatInt(now.UnixMicro(), 10), Plane: r.controlPlane,
		State: rest.RebuildRunning, Status: domain.Status{Code: domain.OK.String()}, StartTime: &now,
		LogEvents: domain.Count(r.world.Position())}
	before := r.all
	r.all = append([]rest.Rebuild{one}, before[:min(len(before), maxRebuilds-1)]...)
	if err := r.save(); err != nil {
		r.all = before
		return rest.Rebuild{}, err
	}
	rebuild, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.run(func(ctx context.Context) error {
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		defer context.AfterFunc(rebuild, stop)()
		r.finish(ctx, rebuild)
		return nil
	})
	return one, nil
}

// finish runs the rebuild that Start has recorded, and records its result. ctx is done when the
// operator cancels the rebuild or the server stops; the context rebuild is done only when the
// operator cancels it.
func (r *rebuilds) finish(ctx, rebuild context.Context) {
	c, err := r.rebuild(ctx, r.world, r.log, func(folded, logEvents uint64) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.all[0].FoldedEvents, r.all[0].LogEvents = domain.Count(folded), domain.Count(logEvents)
	})
	var unknown *projections.NotComparedError
	replaced, position := errors.As(err, &unknown), c.Folded.Position
	if replaced {
		position = unknown.Position
	} else if err == nil && !c.Equal() {
		replaced = true
		r.logDifferences(c)
	}
	if replaced {
		if failed := r.replaceDerived(position); failed != nil {
			err = errors.Join(err, fmt.Errorf("the state was replaced at position %d, but the next start may load the former "+
				"state again, because a file was not written: %w: free disk space, and run `anneal world rebuild` again",
				position, failed))
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	one := &r.all[0]
	if c.Folded.SHA256 != "" {
		one.Served, one.Folded, one.Differences, one.DifferenceCount = &c.Served, &c.Folded, c.Differences, c.DifferenceCount
	}
	switch {
	case err == nil:
		end(one, rest.RebuildCompleted, nil)
		r.logger.Info("the state was rebuilt from the log", "position", c.Folded.Position, "sha256", c.Folded.SHA256,
			"differences", c.DifferenceCount)
	case rebuild.Err() != nil && !replaced && one.Folded == nil:
		end(one, rest.RebuildCancelled, errCancelled)
	default:
		end(one, rest.RebuildFailed, err)
		r.logger.Error("the rebuild failed", "error", err)
	}
	if err := r.save(); err != nil {
		r.logger.Error("the result of the rebuild cannot be written", "error", err)
	}
}

func (r *rebuilds) logDifferences(c projections.Comparison) {
	names := make([]string, 0, loggedNames)
	for _, d := range c.Differences[:min(len(c.Differences), loggedNames)] {
		names = append(names, d.Name+" "+d.Kind)
	}
	r.logger.Error("the state differed from the log, and was replaced by that of the log", "position",
		c.Folded.Position, "count",
		c.DifferenceCount, "first", names)
}

// replaceDerived replaces data that was derived from the former state, which differed from the log at
// a position, or may have: the snapshots now, and the archive of earlier states at the next start.
func (r *rebuilds) replaceDerived(position uint64) error {
	err := datadir.WritePrivate(r.dir.Path(staleArchive), []byte("The state may have differed from the log at position "+
		strconv.FormatUint(position, 10)+". The next start writes the archive of earlier states again.\n"))
	if err == nil {
		err = r.world.Save(r.dir.Path("snapshots"))
	}
	if err == nil {
		err = projections.RemoveSnapshotsBefore(r.world, r.dir.Path("snapshots"), position)
	}
	return err
}

// removeStaleArchive removes the archive of earlier states if a rebuild has found that it may be
// wrong. The server then writes it again.
func removeStaleArchive(dir datadir.Dir) error {
	if _, err := os.Stat(dir.Path(staleArchive)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(dir.Path(datadir.Archive)); err != nil {
		return err
	}
	return os.Remove(dir.Path(staleArchive))
}

// save writes the file with the results. The caller holds r.mu.
func (r *rebuilds) save() error {
	content, err := json.MarshalIndent(r.all, "", "  ")
	if err != nil {
		return err
	}
	return datadir.WritePrivate(r.dir.Path(rebuildsFile), append(content, '\n'))
}

func (r *rebuilds) Cancel(id string) (rest.Rebuild, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, one := range r.all {
		if one.ID != id {
			continue
		}
		if one.State != rest.RebuildRunning {
			return rest.Rebuild{}, domain.Errorf(domain.FailedPrecondition, "rebuild %s is %s: only a running "+
				"rebuild can be cancelled", id, one.State)
		}
		r.cancel()
		return r.all[i], nil
	}
	return rest.Rebuild{}, domain.Errorf(domain.NotFound, "rebuild %q not found: list rebuilds with `anneal world status`",
		id)
}

func (r *rebuilds) All() []rest.Rebuild {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]rest.Rebuild(nil), r.all...)
}
