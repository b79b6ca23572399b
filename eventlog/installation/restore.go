package installation

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/domain"
)

// A Restore describes a restore of a backup to the cluster. While the record has one, the log, the
// data keys or the files can be incomplete, so no control plane can join.
type Restore struct {
	ID        string    `json:"id"`     // random ID of the process that restores
	Log       string    `json:"log"`    // ID of the first event of the backup
	Backup    string    `json:"backup"` // ID of the backup
	StartTime time.Time `json:"startTime"`
}

// ReasonRestoring is the reason of the error that Record.Check returns for a cluster with an
// incomplete restore.
const ReasonRestoring = "INCOMPLETE_RESTORE"

func (r Restore) incomplete() error {
	return &domain.Error{Code: domain.FailedPrecondition, Reason: ReasonRestoring,
		Message: fmt.Sprintf("the restore of backup %s to the NATS cluster, which began at %s, is not complete, so events, "+
			"data keys or files can be missing: wait for it or, if it was interrupted, run the same `anneal restore` "+
			"command again", r.Backup, r.StartTime.Format(time.RFC3339))}
}

// emptyCluster is the advice in errors about clusters to which a backup cannot be restored.
const emptyCluster = "nothing was changed; restore to an empty NATS cluster"

// admit decides whether a backup can be restored to the cluster with this record: to a cluster
// without an installation, to one with an interrupted restore of the same log and, so that the
// repetition of a complete restore can create the data directory, to one whose record has the same
// keys. complete is true in the last case.
func (r Record) admit(restore Restore, hasLog bool, keys map[string][]string, eventVersion int) (complete bool,
	err error) {
	switch {
	case r.Restore != nil && r.Restore.Log != restore.Log:
		return false, domain.Errorf(domain.FailedPrecondition, "the NATS cluster has an incomplete restore of another "+
			"installation (backup %s): %s", r.Restore.Backup, emptyCluster)
	case r.Restore != nil:
		return false, nil
	case len(r.Members) > 0:
		return false, domain.Errorf(domain.FailedPrecondition, "the NATS cluster has an installation with control "+
			"planes (%s): %s", strings.Join(slices.Sorted(maps.Keys(r.Members)), ", "), emptyCluster)
	case !hasLog:
		return false, nil
	case r.Keys == nil:
		return false, domain.Errorf(domain.FailedPrecondition, "the NATS cluster has a log: %s", emptyCluster)
	}
	if err := r.Check(keys, eventVersion); err != nil {
		return false, domain.Errorf(domain.FailedPrecondition, "the NATS cluster has another installation: %s", emptyCluster)
	}
	return true, nil
}

// CheckRestore returns an error if the backup of restore cannot be restored to the cluster of nc.
// keys has the fingerprints of the backup's keys, as for Record.Check. It changes nothing.
func CheckRestore(ctx context.Context, nc *nats.Conn, restore Restore, keys map[string][]string,
	eventVersion int) error {
	record, _, err := Read(ctx, nc)
	if err != nil {
		return err
	}
	hasLog, err := HasLog(ctx, nc)
	if err == nil {
		_, err = record.admit(restore, hasLog, keys, eventVersion)
	}
	return err
}

// BeginRestore adds restore to the record of the installation, so that no control plane can join
// until CompleteRestore. It returns an error if the backup cannot be restored to the cluster.
// complete reports that an earlier restore was complete; the record is then unchanged.
func BeginRestore(ctx context.Context, nc *nats.Conn, replicas int, restore Restore, keys map[string][]string,
	eventVersion int) (complete bool, err error) {
	bucket, err := open(ctx, nc, replicas)
	if err != nil {
		return false, err
	}
	_, err = update(ctx, bucket, func(r Record) (*Record, error) {
		hasLog, err := HasLog(ctx, nc)
		if err != nil {
			return nil, err
		}
		if complete, err = r.admit(restore, hasLog, keys, eventVersion); err != nil || complete {
			return nil, err
		}
		return &Record{Restore: &restore, EventVersion: eventVersion}, nil
	})
	return complete, err
}

// CompleteRestore replaces the restore in the record of the installation by the fingerprints of the
// restored keys, so that control planes with these keys can join. It returns an error if another
// process has begun a restore in the meantime.
func CompleteRestore(ctx context.Context, nc *nats.Conn, replicas int, restore Restore, keys map[string]string) error {
	bucket, err := open(ctx, nc, replicas)
	if err != nil {
		return err
	}
	_, err = update(ctx, bucket, func(r Record) (*Record, error) {
		if r.Restore == nil && maps.Equal(r.Keys, keys) { // an earlier attempt, whose reply was lost, has written it
			return nil, nil
		}
		if r.Restore == nil || r.Restore.ID != restore.ID {
			return nil, domain.Errorf(domain.Aborted, "another process has begun a restore to the NATS cluster: run one "+
				"restore at a time, and repeat this one")
		}
		return &Record{Keys: keys, EventVersion: r.EventVersion, Members: map[string]Member{}}, nil
	})
	return err
}
