// Package reconcile deletes data outside of the log to which no resource refers: files in the
// bucket, and data keys of sealed values. Other packages delete only the files of their own
// requests (see blobs.Store.DeletePrefix). When an event deletes a resource, the reconciler deletes
// the data of the resource once the event is durable.
package reconcile

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"time"

	"anneal/blobs"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// A KeyStore stores the data keys of sealed values.
type KeyStore interface {
	DataKeys(ctx context.Context) iter.Seq2[secrets.DataKey, error]
	// Shred erases a data key. If the key does not exist, it returns nil.
	Shred(ctx context.Context, id string) error
	// Owner returns the ID of the log that claimed the key store; "" when no log has claimed it.
	Owner(ctx context.Context) (string, error)
	Claim(ctx context.Context, log string) error
}

// Options configures a Reconciler.
type Options struct {
	Log    eventlog.Log
	World  *projections.World // world that follows Log, so that it has only durable events
	Blobs  *blobs.Store
	Keys   KeyStore
	Dir    string           // data directory, for HoldFile and AdoptFile; "" if there is none
	Now    func() time.Time // returns the current time, to compute ages of files and keys; nil stands for time.Now
	Logger *slog.Logger     // nil discards log messages
}

// A Reconciler deletes files and data keys to which no resource in the world refers. Several
// Reconcilers may run concurrently, because deleting data that does not exist is no error.
type Reconciler struct {
	Options
	started time.Time
	log     *slog.Logger
}

// New returns a reconciler; call Run to start it.
func New(o Options) *Reconciler {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reconciler{o, o.Now(), cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
}

const (
	batchDelay    = time.Second // data to which resources stop referring within this time is deleted together
	listShare     = 20          // Run spends at most 1/listShare of its time on enumerating the references
	retryInterval = time.Minute // time between attempts to delete data, and to authorize
	sweepInterval = time.Hour
)

// Run deletes data until ctx is done. It deletes data to which a resource stops referring, and
// uploaded files whose upload is recorded, within seconds. At the start and every sweepInterval, it
// deletes unreferenced files older than Grace, and at the start and every KeyGrace, unreferenced
// data keys older than KeyGrace. It deletes nothing while authorize returns an error.
func (r *Reconciler) Run(ctx context.Context) error {
	last := referencesOf(r.World.View(), nil)
	backlog := newReferences()
	var swept, sweptKeys, authorized, logBegan time.Time
	var refused error
	staged := false // files below blobs.StagingRoot may be unreferenced
	for ctx.Err() == nil {
		now := r.Now()
		if now.Sub(authorized) >= retryInterval || errors.Is(refused, errEmptyLog) {
			authorized = now
			if logBegan, refused = r.authorize(ctx); refused != nil && !errors.Is(refused, errEmptyLog) && ctx.Err() == nil {
				r.log.Error("no unreferenced files and data keys are deleted", "error", refused)
			}
		}
		if refused == nil && now.Sub(swept) >= sweepInterval {
			swept = now
			r.logFailure(ctx, "files", r.sweepBlobs(ctx, logBegan, Grace, blobs.Roots()))
		}
		if refused == nil && now.Sub(sweptKeys) >= KeyGrace {
			sweptKeys = now
			r.logFailure(ctx, "data keys", r.sweepKeys(ctx, logBegan, KeyGrace))
		}
		began, view := time.Now(), r.World.View()
		refs := referencesOf(view, last)
		backlog.add(refs.dropped(last))
		spent := time.Since(began)
		staged = staged || refs.changed(last, uploading)
		last = refs
		if refused == nil {
			backlog = r.deleteDropped(ctx, refs, backlog)
		}
		if refused == nil && staged {
			err := r.sweepBlobs(ctx, logBegan, 0, []string{blobs.StagingRoot})
			r.logFailure(ctx, "uploaded files", err)
			staged = err != nil
		}
		again := KeyGrace
		if !backlog.empty() || refused != nil || staged {
			again = retryInterval
		}
		r.wait(ctx, view.Position, again, max(batchDelay, listShare*spent))
	}
	return ctx.Err()
}

// wait waits until the world has an event after position, but no longer than timeout, and then for
// delay. It returns early when ctx is done.
func (r *Reconciler) wait(ctx context.Context, position uint64, timeout, delay time.Duration) {
	late := time.NewTimer(timeout)
	defer late.Stop()
	select {
	case <-r.World.Changed(position):
	case <-late.C:
	case <-ctx.Done():
		return
	}
	pause := time.NewTimer(delay)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// add adds the references in others to r.
func (r *References) add(others *References) {
	maps.Copy(r.prefixes, others.prefixes)
	maps.Copy(r.files, others.files)
	maps.Copy(r.keys, others.keys)
}

// deleteDropped deletes the data to which dropped refers, except data to which refs still refers,
// such as one file below a dropped prefix. left refers to the data that could not be deleted.
func (r *Reconciler) deleteDropped(ctx context.Context, refs references, dropped *References) (left *References) {
	left = newReferences()
	if dropped.empty() {
		return left
	}
	for id := range dropped.keys {
		if refs.dataKey(id) {
			continue
		}
		if err := r.Keys.Shred(ctx, id); err != nil {
			r.logFailure(ctx, "data key "+id, err)
			left.keys[id] = true
		}
	}
	for key := range dropped.files {
		if err := r.deleteBlob(ctx, refs, key); err != nil {
			r.logFailure(ctx, key, err)
			left.files[key] = true
		}
	}
	for prefix := range dropped.prefixes {
		files, err := r.Blobs.Files(ctx, prefix)
		for name := range files.Sizes {
			err = errors.Join(err, r.deleteBlob(ctx, refs, prefix+name))
		}
		if err != nil {
			r.logFailure(ctx, prefix, err)
			left.prefixes[prefix] = true
		}
	}
	return left
}

func (r *Reconciler) logFailure(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		r.log.Warn("unreferenced data could not be deleted: the deletion will be retried", "what", what, "error", err)
	}
}

func (r *Reconciler) deleteBlob(ctx context.Context, refs references, key string) error {
	if !isManaged(key) || refs.blob(key) {
		return nil
	}
	return r.Blobs.Delete(ctx, key)
}

// Reconcile deletes every unreferenced file and data key that is older than grace, except data that
// is older than the log. If the log has no events, it deletes nothing.
func (r *Reconciler) Reconcile(ctx context.Context, grace time.Duration) error {
	began, err := r.authorize(ctx)
	if errors.Is(err, errEmptyLog) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(r.sweepBlobs(ctx, began, grace, blobs.Roots()), r.sweepKeys(ctx, began, grace))
}

// sweepBlobs deletes the files below roots that orphanBlobs returns. It lists the files before it
// calls current. Files below blobs.StagingRoot need no grace period, because an event refers to
// their prefix before clients can store them.
func (r *Reconciler) sweepBlobs(ctx context.Context, began time.Time, grace time.Duration, roots []string) error {
	var listed []blobs.File
	for _, root := range roots {
		for f, err := range r.Blobs.List(ctx, root) {
			if err != nil {
				return err
			}
			listed = append(listed, f)
		}
	}
	now := r.Now()
	refs, err := r.current(ctx)
	if err != nil {
		return err
	}
	orphans := orphanBlobs(listed, refs, began, now, grace)
	for _, key := range orphans {
		err = errors.Join(err, r.Blobs.Delete(ctx, key))
	}
	if len(orphans) > 0 && err == nil && grace > 0 { // an error is logged by the caller instead
		r.log.Info("unreferenced files deleted", "files", len(orphans))
	}
	return err
}

// sweepKeys erases the data keys that orphanKeys returns. It lists the data keys before it calls
// current.
func (r *Reconciler) sweepKeys(ctx context.Context, began time.Time, grace time.Duration) error {
	var listed []secrets.DataKey
	for key, err := range r.Keys.DataKeys(ctx) {
		if err != nil {
			return err
		}
		listed = append(listed, key)
	}
	now := r.Now()
	refs, err := r.current(ctx)
	if err != nil {
		return err
	}
	orphans := orphanKeys(listed, refs, began, r.started, now, grace)
	for _, id := range orphans {
		err = errors.Join(err, r.Keys.Shred(ctx, id))
	}
	if len(orphans) > 0 && err == nil { // an error is logged by the caller instead
		r.log.Info("unreferenced data keys erased", "keys", len(orphans))
	}
	return err
}

// current returns the references in the world once the world has all events that the log has at the
// time of the call. So a caller that has listed a store before gets all references to the listed
// data that were recorded before the listing.
func (r *Reconciler) current(ctx context.Context) (references, error) {
	end, err := r.Log.Last(ctx)
	if err == nil {
		err = r.World.WaitFor(ctx, end.Position)
	}
	if err != nil {
		return nil, err
	}
	return referencesOf(r.World.View(), nil), nil
}
