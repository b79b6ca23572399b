package backup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/datadir"
)

// States of the newest backup to a target.
const (
	Running   = "RUNNING"
	Completed = "COMPLETED"
	Failed    = "FAILED"
)

// A Status describes the newest backup to one target, and the last complete one.
type Status struct {
	Target     string    `json:"target"`
	Recipients []string  `json:"recipients"`
	References bool      `json:"references,omitempty"`
	State      string    `json:"state"`             // state of the newest backup
	StartTime  time.Time `json:"startTime"`         // start of the newest backup
	Copied     int64     `json:"copied"`            // bytes that the newest backup has copied so far
	Failure    string    `json:"failure,omitempty"` // error with which the newest backup failed; "" if it did not
	// FailureCode is the name of the domain.Code of the failure.
	FailureCode string   `json:"failureCode,omitempty"`
	Last        *Summary `json:"last,omitempty"` // last complete backup; nil if there is none
}

// A Summary has the fields of a manifest that a Status shows.
type Summary struct {
	ID string `json:"id"`
	eventlog.Checkpoint
	Time    time.Time `json:"time"` // time of the state that the backup contains
	EndTime time.Time `json:"endTime"`
	Files   int       `json:"files"`
	Bytes   int64     `json:"bytes"`  // total size of the files in the backup, in bytes
	Copied  int64     `json:"copied"` // number of bytes that this backup itself has added to the target
	Missing []string  `json:"missing,omitempty"`
}

// A Service runs the backups of an installation, one at a time, and records their results in a file
// of the data directory.
type Service struct {
	source Source
	run    func(func(context.Context) error) // runs a function in the background until the server stops

	mu      sync.Mutex
	targets map[string]*Status
	pruning string // target from which Prune removes backups now; "" if none
}

const statusFile = "backups.json"

// NewService returns a service. It runs its backups with background, which must call the function
// in its own goroutine and cancel the context when the server stops.
func NewService(from Source, background func(func(context.Context) error)) (*Service, error) {
	s := &Service{source: from, run: background, targets: map[string]*Status{}}
	content, err := os.ReadFile(from.Dir.Path(statusFile))
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &s.targets)
	}
	for _, one := range s.targets {
		if one.State == Running {
			one.fail(domain.Errorf(domain.Aborted, "the server stopped during the backup"))
		}
	}
	return s, err
}

// Start starts a backup to a target in the background and returns its status. If settings has no
// recipients, the backup has those of the last backup to the target, and only lists the files if
// that backup or settings does (Settings.References).
func (s *Service) Start(ctx context.Context, target string, settings Settings) (Status, error) {
	bucket, one, err := s.begin(ctx, target, settings)
	if err != nil {
		return Status{}, err
	}
	s.run(func(ctx context.Context) error {
		_ = s.finish(ctx, bucket, one) // finish records the error in the status
		return nil
	})
	return s.status(one), nil
}

// busyPause is the time after which RunEvery tries again while another backup or a Prune runs.
const busyPause = time.Minute

// RunEvery runs a backup to a target now and after each interval, until ctx is done.
func (s *Service) RunEvery(ctx context.Context, target string, settings Settings, interval time.Duration) error {
	for {
		bucket, one, err := s.begin(ctx, target, settings)
		if err == nil {
			err = s.finish(ctx, bucket, one)
		}
		pause := interval
		if hasReason(err, reasonBusy) {
			pause = min(busyPause, interval)
		}
		if err != nil && ctx.Err() == nil {
			s.source.Logger.Error("the backup failed and will be retried", "target", target, "retryAfter", pause,
				"error", err)
		}
		if !eventlog.Sleep(ctx, pause) {
			return ctx.Err()
		}
	}
}

// begin opens the bucket of a target, and records that a backup to the target is running.
func (s *Service) begin(ctx context.Context, target string, settings Settings) (*blobs.Store, *Status, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.checkIdle(); err != nil {
		return nil, nil, err
	}
	one := Status{Target: target, Recipients: settings.Recipients, References: settings.References}
	if before := s.targets[target]; before != nil {
		one.Last = before.Last
		if len(settings.Recipients) == 0 {
			one.Recipients, one.References = before.Recipients, before.References || settings.References
		}
	}
	if _, err := parseRecipients(one.Recipients); err != nil {
		return nil, nil, err
	}
	bucket, err := Open(context.WithoutCancel(ctx), target)
	if err != nil {
		return nil, nil, err
	}
	one.State, one.StartTime = Running, time.Now().UTC()
	before := s.targets[target]
	s.targets[target] = &one
	if err := s.save(); err != nil {
		if s.targets[target] = before; before == nil {
			delete(s.targets, target)
		}
		return nil, nil, errors.Join(err, bucket.Close())
	}
	return bucket, &one, nil
}

const reasonBusy = "BACKUP_RUNNING"

// checkIdle returns an error with reasonBusy while a backup or a Prune runs. The caller holds the
// lock.
func (s *Service) checkIdle() error {
	for _, one := range s.targets {
		if one.State == Running {
			return &domain.Error{Code: domain.FailedPrecondition, Reason: reasonBusy, Message: fmt.Sprintf("a backup "+
				"to %s has been running since %s: wait until it ends", one.Target, one.StartTime.Format(time.RFC3339))}
		}
	}
	if s.pruning != "" {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: reasonBusy, Message: fmt.Sprintf("old backups "+
			"are being removed from %s: wait until the removal ends", s.pruning)}
	}
	return nil
}

// Prune removes backups from a target like the function Prune. It returns an error while a backup
// runs.
func (s *Service) Prune(ctx context.Context, target string, keep Retention) (Pruned, error) {
	s.mu.Lock()
	err := s.checkIdle()
	if err == nil {
		s.pruning = target
	}
	s.mu.Unlock()
	if err != nil {
		return Pruned{}, err
	}
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.pruning = ""
	}()
	bucket, err := OpenExisting(ctx, target)
	if err != nil {
		return Pruned{}, err
	}
	pruned, err := Prune(ctx, bucket, s.source, keep)
	s.source.Logger.Info("backups removed", "target", target, "removed", len(pruned.Removed), "kept", len(pruned.Kept),
		"objects", pruned.Objects, "bytes", pruned.Bytes, "error", err)
	return pruned, errors.Join(err, bucket.Close())
}

// finish runs the backup to bucket for which begin returned status, and records its result.
func (s *Service) finish(ctx context.Context, bucket *blobs.Store, status *Status) error {
	m, err := Run(ctx, s.source, bucket, Settings{status.Recipients, status.References}, func(bytes int64) {
		s.mu.Lock()
		defer s.mu.Unlock()
		status.Copied = bytes
	})
	err = errors.Join(err, bucket.Close())
	s.mu.Lock()
	defer s.mu.Unlock()
	if status.State = Completed; err != nil {
		status.fail(err)
		return errors.Join(err, s.save())
	}
	status.Last = &Summary{m.ID, m.Checkpoint, m.Time, m.EndTime, m.Files.Count, m.Files.Bytes, m.Copied, m.Files.Missing}
	s.source.Logger.Info("backup complete", "target", status.Target, "id", m.ID, "position", m.Position,
		"copied", m.Copied)
	return s.save()
}

func (s *Status) fail(err error) {
	s.State, s.Failure, s.FailureCode = Failed, err.Error(), domain.CodeOf(err).String()
}

// save writes the status file. The caller holds the lock.
func (s *Service) save() error {
	content, err := json.MarshalIndent(s.targets, "", "  ")
	if err != nil {
		return err
	}
	return datadir.WritePrivate(s.source.Dir.Path(statusFile), append(content, '\n'))
}

func (s *Service) status(one *Status) Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *one
}

// All returns the status of every target, sorted by target.
func (s *Service) All() (all []Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, one := range s.targets {
		all = append(all, *one)
	}
	slices.SortFunc(all, func(a, b Status) int {
		if a.Target < b.Target {
			return -1
		}
		return 1
	})
	return all
}
