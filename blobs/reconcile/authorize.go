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

// Files in the data folder by which an operator controls deletion.
const (
	// HoldFile stops all deletion while it is there. It says why.
	HoldFile = "sweep.held"
	// AdoptFile lets a log take over a bucket and a key store of another log. It
	// is removed when that was done.
	AdoptFile = "sweep.adopt"
)

// claimSkew is how far the clocks of a bucket and of the log may differ.
const claimSkew = 10 * time.Minute

// errEmptyLog means that there is no log yet by which to judge a file.
var errEmptyLog = errors.New("the log has no events: nothing is deleted")

// authorize tells whether the files and data keys are this log's, and may be
// deleted: an empty, foreign or shortened log refers to none of them. It answers
// when the log began. The ID of the first event identifies the log.
//
// A bucket or a key store without an owner is claimed, unless it holds what is
// older than the log.
func (r *Reconciler) authorize(ctx context.Context) (began time.Time, err error) {
	if why, err := os.ReadFile(filepath.Join(r.Dir, HoldFile)); r.Dir != "" && !errors.Is(err, os.ErrNotExist) {
		return began, fmt.Errorf("%s holds deletion back: %s (%w)", filepath.Join(r.Dir, HoldFile), strings.TrimSpace(string(why)),
			errors.Join(err, errors.New("remove the file to resume")))
	}
	first, err := r.Log.At(ctx, 1)
	switch {
	case domain.CodeOf(err) == domain.NotFound:
		return began, errEmptyLog
	case err != nil:
		return began, err
	}
	began = first.Time
	if id, err := uuid.Parse(first.ID); err == nil && id.Version() == 7 { // dated when it was appended
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
			return began, r.foreign("the owner of the %s cannot be read (%v)", store.what, err)
		}
		if owner == first.ID {
			continue
		}
		oldest := began
		if owner == "" && !adopt {
			if oldest, err = store.oldest(ctx); err != nil {
				return began, err
			}
		}
		switch {
		case adopt:
		case owner != "":
			return began, r.foreign("the %s belongs to the log whose first event is %s, and this log's is %s", store.what, owner, first.ID)
		case oldest.Before(began.Add(-claimSkew)):
			return began, r.foreign("the %s has content of %s, and this log (first event %s) began at %s", store.what,
				oldest.UTC().Format(time.RFC3339), first.ID, began.UTC().Format(time.RFC3339))
		}
		if err := store.claim(ctx, first.ID); err != nil {
			return began, err
		}
		if owner, err = store.owner(ctx); err == nil && owner != first.ID {
			err = r.foreign("another log, whose first event is %s, claimed the %s at the same time", owner, store.what)
		}
		if err != nil {
			return began, err
		}
		r.log.Info("the log claimed a store: only its control planes delete there", "store", store.what, "firstEvent", first.ID)
	}
	if adopt {
		err = os.Remove(filepath.Join(r.Dir, AdoptFile))
	}
	return began, err
}

func (r *Reconciler) foreign(format string, args ...any) error {
	return fmt.Errorf(format+": nothing is deleted; correct --blobs, --nats-url or --data, or, if this log is to take the place of "+
		"the other one, create the file %s", append(args, filepath.Join(r.Dir, AdoptFile))...)
}

// oldestBlob is the time of the oldest file; now when there is none.
func (r *Reconciler) oldestBlob(ctx context.Context) (time.Time, error) {
	oldest := r.Now()
	for _, root := range blobs.Roots() {
		for f, err := range r.Blobs.List(ctx, root) {
			if domain.CodeOf(err) == domain.NotFound {
				break // a control plane that is authorized deletes there just now
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

// oldestKey is oldestBlob for data keys that tell when they were made.
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
