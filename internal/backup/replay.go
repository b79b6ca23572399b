package backup

import (
	"bytes"
	"context"
	"iter"
	"path/filepath"
	"slices"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/metering"
	"anneal/eventlog/streamcopy"
	"anneal/internal/datadir"
)

func parent(dir datadir.Dir) string { return filepath.Dir(filepath.Clean(string(dir))) }

// putEvents publishes the events of the backup up to Position or Time. It reads also the events
// after that, because it compares the hash chain of all events with the manifest's.
func (r *restore) putEvents(ctx context.Context) error {
	// zero for an empty log; not zero if an interrupted restore has published events to the cluster
	there, err := r.log.Log().Last(ctx)
	if err != nil {
		return err
	}
	publisher, err := streamcopy.NewPublisher(r.log.Control())
	if err != nil {
		return err
	}
	var chain, restored integrity.HashChain
	done := false
	for s := range r.events() {
		err := segment(ctx, r.target, s, func(m streamcopy.Message) error {
			if err := m.Extend(&chain); err != nil {
				return err
			}
			e, err := m.Event()
			if err != nil {
				return err
			}
			done = done || r.Position > 0 && m.Position > r.Position || !r.Time.IsZero() && e.Time.After(r.Time)
			if done {
				return nil
			}
			restored, r.result.Checkpoint, r.result.Time = chain, chain.Checkpoint, e.Time
			if m.Position == there.Position && e.ID != there.EventID {
				return domain.Errorf(domain.FailedPrecondition, "the stream %s has another log: restore to an empty NATS cluster",
					eventlog.Stream)
			}
			if m.Position <= there.Position || r.complete {
				return nil
			}
			return publisher.PublishAt(m)
		})
		if err != nil {
			return err
		}
	}
	if err := publisher.Wait(ctx); err != nil {
		return err
	}
	if chain.Checkpoint != r.from.Checkpoint || chain.Hash.String() != r.from.Hash {
		return damaged(r.from.ID, "the events of backup %s do not match its manifest (the events end at position %d "+
			"with hash %s, the manifest has position %d and hash %s)",
			r.from.ID, chain.Position, chain.Hash, r.from.Position, r.from.Hash)
	}
	switch {
	case r.result.Position == 0:
		return domain.Errorf(domain.OutOfRange, "the log of the backup has no event at or before %s: give a later time",
			r.Time.Format(time.RFC3339))
	case there.Position > r.result.Position:
		return domain.Errorf(domain.FailedPrecondition, "the stream %s already has %d events, more than this "+
			"restore: restore to an empty NATS cluster", eventlog.Stream, there.Position)
	case r.complete && there.Position < r.result.Position:
		return domain.Errorf(domain.FailedPrecondition, "the NATS cluster already has an installation with these keys, "+
			"and fewer events (%d) than this restore (%d): restore to an empty NATS cluster", there.Position,
			r.result.Position)
	}
	if err := r.sync(); err != nil {
		return err
	}
	return r.mark(restored)
}

// events returns the segments with the events of the chosen backup and its parents, in the order of
// their positions.
func (r *restore) events() iter.Seq[Segment] {
	return func(yield func(Segment) bool) {
		for _, m := range slices.Backward(r.all) {
			for _, s := range m.Events {
				if !yield(s) {
					return
				}
			}
		}
	}
}

// putUsage publishes the usage records up to the time of the last restored event. It skips the
// records that an interrupted restore has already published to the cluster.
func (r *restore) putUsage(ctx context.Context) error {
	if r.complete {
		return nil
	}
	there, err := streamcopy.Last(ctx, r.log.Control(), metering.Stream)
	if err != nil {
		return err
	}
	publisher, err := streamcopy.NewPublisher(r.log.Control())
	if err != nil {
		return err
	}
	sequence := uint64(0) // of the record in the restored stream; the backup lacks records that had expired
	for _, s := range usageOf(r.all) {
		err := segment(ctx, r.target, s, func(m streamcopy.Message) error {
			if r.result.Position < r.from.Position && m.Time().After(r.result.Time) {
				return nil // later records can have earlier times, because control planes send them on their own
			}
			sequence++
			m.Position = sequence
			switch {
			case sequence < there:
				return nil
			case sequence == there:
				return r.checkUsage(ctx, m)
			}
			return publisher.PublishAt(m)
		})
		if err != nil {
			return err
		}
	}
	if sequence < there {
		return otherUsage(there)
	}
	if err := publisher.Wait(ctx); err != nil {
		return err
	}
	return r.sync()
}

// checkUsage checks that the last record in the cluster is m.
func (r *restore) checkUsage(ctx context.Context, m streamcopy.Message) error {
	for last, err := range streamcopy.Read(ctx, r.log.Control(), metering.Stream, m.Position-1, m.Position) {
		if err != nil {
			return err
		}
		if last.Subject == m.Subject && bytes.Equal(last.Data, m.Data) {
			return nil
		}
	}
	return otherUsage(m.Position)
}

func otherUsage(last uint64) error {
	return domain.Errorf(domain.FailedPrecondition, "the stream %s already has %d other records: restore to an empty "+
		"NATS cluster", metering.Stream, last)
}
