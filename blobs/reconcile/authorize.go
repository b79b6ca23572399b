package reconcile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/google/uuid"

	"anneal/blobs"
	"anneal/domain"
)

// Files in the data directory with which an operator controls the deletion of files and data keys.
const (
	// HoldFile stops all deletion of files and data keys while it exists. It contains the reason.
	HoldFile = "sweep.held"
	// AdoptFile lets a log take over the bucket and the key store of another log. The reconciler
	// removes the file after the takeover.
	AdoptFile = "sweep.adopt"
)

// claimSkew is the maximum accepted difference between the clock of the object store and the clocks
// that set the times of events.
const claimSkew = 10 * time.Minute

// errEmptyLog is returned for a log without events, which cannot own any files.
var errEmptyLog = errors.New("the log has no events, so no unreferenced files and data keys are deleted")

// authorize returns an error unless the bucket and the key store belong to this log. A log that is
// empty, truncated or of another installation does not refer to their content, so without this
// check all of the content would be deleted. began is the time of the log's first event, whose ID
// identifies the log.
//
// authorize claims a bucket or a key store that no log has claimed, unless its content is older
// than the log. If AdoptFile exists, it claims both in any case. While HoldFile exists, it returns
// an error.
func (r *Reconciler) authorize(ctx context.Context) (began time.Time, err error) {
	if why, err := os.ReadFile(filepath.Join(r.Dir, HoldFile)); r.Dir != "" && !errors.Is(err, os.ErrNotExist) {
		return began, fmt.Errorf("the file %s stops deletion: %s (%w)", filepath.Join(r.Dir, HoldFile),
			strings.TrimSpace(string(why)),
			errors.Join(err, errors.New("remove the file to resume deletion")))
	}
	first, err := r.Log.At(ctx, 1)
	switch {
	case domain.CodeOf(err) == domain.NotFound:
		return began, errEmptyLog
	case err != nil:
		return began, err
	}
	began = first.Time
	// A UUID of version 7 contains the time of the append.
	if id, err := uuid.Parse(first.ID); err == nil && id.Version() == 7 {
		if at := time.Unix(id.Time().UnixTime()); at.Before(began) {
			began = at
		}
	}
	adopt := false
	if r.Dir != "" {
		_, err := os.Stat(filepath.Join(r.Dir, AdoptFile))
		adopt = err == nil
	}
	for _, store := range []struct {
		what   string
		owner  func(context.Context) (string, error)
		claim  func(context.Context, string) error
		oldest func(context.Context) (time.Time, error)
	}{{"bucket", r.Blobs.Owner, r.Blobs.Claim, r.oldestBlob}, {"key store", r.Keys.Owner, r.Keys.Claim, r.oldestKey}} {
		owner, err := store.owner(ctx)
		if err != nil && !adopt {
			return began, r.errForeign("cannot read which log owns the %s (%v)", store.what, err)
		}
		if owner == first.ID {
			continue
		}
		oldest := began
		if owner == blobs.RestoredOwner(first.ID) {
			owner = "" // the files are those of the backup, and not older than the log
		} else if owner == "" && !adopt {
			if oldest, err = store.oldest(ctx); err != nil {
				return began, err
			}
		}
		switch {
		case adopt:
		case owner != "":
			return began, r.errForeign("the %s belongs to the log whose first event is %s, but this log's is %s", store.what,
				owner, first.ID)
		case oldest.Before(began.Add(-claimSkew)):
			return began, r.errForeign("the %s has content that was stored at %s, but this log (first event %s) began at %s",
				store.what, oldest.UTC().Format(time.RFC3339), first.ID, began.UTC().Format(time.RFC3339))
		}
		if err := store.claim(ctx, first.ID); err != nil {
			return began, err
		}
		if owner, err = store.owner(ctx); err == nil && owner != first.ID {
			err = r.errForeign("another log, whose first event is %s, claimed the %s at the same time", owner, store.what)
		}
		if err != nil {
			return began, err
		}
		r.log.Info("the "+store.what+" belongs to this installation: only its servers delete unused data there",
			"firstEvent", first.ID)
	}
	if adopt {
		err = os.Remove(filepath.Join(r.Dir, AdoptFile))
	}
	return began, err
}

func (r *Reconciler) errForeign(format string, args ...any) error {
	return fmt.Errorf(format+": no unreferenced data is deleted; correct --blobs, --nats-url or --data, or create the "+
		"file %s if this log replaces the other one", append(args, filepath.Join(r.Dir, AdoptFile))...)
}

// oldestBlob returns the time of the oldest file below blobs.Roots; the current time when there are
// no files.
func (r *Reconciler) oldestBlob(ctx context.Context) (time.Time, error) {
	oldest := r.Now()
	for _, root := range blobs.Roots() {
		for f, err := range r.Blobs.List(ctx, root) {
			if domain.CodeOf(err) == domain.NotFound {
				break // another control plane has just deleted the files
			}
			if err != nil {
				return oldest, err
			}
			if f.Time.Before(oldest) {
				oldest = f.Time
			}
		}
	}
	return oldest, nil
}

// oldestKey returns the creation time of the oldest data key with a known creation time, or the
// current time when there is none.
func (r *Reconciler) oldestKey(ctx context.Context) (time.Time, error) {
	oldest := r.Now()
	for key, err := range r.Keys.DataKeys(ctx) {
		if err != nil {
			return oldest, err
		}
		if !key.Time.IsZero() && key.Time.Before(oldest) {
			oldest = key.Time
		}
	}
	return oldest, nil
}
