// Package reconcile deletes what lies outside of the log and nothing in it
// refers to any more: files of the blob bucket, and data keys of sealed values.
// Nothing else deletes them. Events come first: a resource is deleted by an event,
// and what it leaves is deleted once that event is durable.
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

// Vault holds data keys.
type Vault interface {
	DataKeys(ctx context.Context) iter.Seq2[secrets.DataKey, error]
	// Shred erases a data key; no error when it is gone already.
	Shred(ctx context.Context, id string) error
	// Owner is the ID of the log that claimed the vault; "" when none has.
	Owner(ctx context.Context) (string, error)
	Claim(ctx context.Context, log string) error
}

// Options say what a Reconciler compares.
type Options struct {
	Log    eventlog.Log
	World  *projections.World // which follows Log, and so shows durable events only
	Blobs  *blobs.Store
	Keys   Vault
	Dir    string           // the data folder, where HoldFile and AdoptFile are looked for; "" is none
	Now    func() time.Time // of the clock by which files and keys are dated; nil is time.Now
	Logger *slog.Logger     // nil is silence
}

// A Reconciler makes the bucket and the vault agree with the world. Several may
// be at work at once: what one deletes, the others find gone.
type Reconciler struct {
	Options
	started time.Time
	log     *slog.Logger
}

// New makes a reconciler; Run sets it to work.
func New(o Options) *Reconciler {
	if o.Now == nil {
		o.Now = time.Now
	}
	return &Reconciler{o, o.Now(), cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
}

const (
	gather     = time.Second // changes that come together are looked at together
	share      = 20          // part of the time that enumerating takes at most: one in so many
	tryAgain   = time.Minute // what could not be deleted is tried again
	sweepEvery = time.Hour
)

// Run deletes until ctx is done: within seconds what resources referred to and no
// longer do, and at the start and then again and again what nothing refers to
// for longer than Grace and KeyGrace. It deletes nothing while authorize refuses.
func (r *Reconciler) Run(ctx context.Context) error {
	last := referencesOf(r.World.View(), nil)
	backlog := newReferences()
	var swept, sweptKeys, asked, logBegan time.Time
	var refused error
	for ctx.Err() == nil {
		now := r.Now()
		if now.Sub(asked) >= tryAgain || errors.Is(refused, errEmptyLog) {
			asked = now
			if logBegan, refused = r.authorize(ctx); refused != nil && !errors.Is(refused, errEmptyLog) && ctx.Err() == nil {
				r.log.Error("no file and no data key is deleted", "error", refused)
			}
		}
		if refused == nil && now.Sub(swept) >= sweepEvery {
			swept = now
			r.complain(ctx, "files", r.sweepBlobs(ctx, logBegan, Grace))
		}
		if refused == nil && now.Sub(sweptKeys) >= KeyGrace {
			sweptKeys = now
			r.complain(ctx, "data keys", r.sweepKeys(ctx, logBegan, KeyGrace))
		}
		began, view := time.Now(), r.World.View()
		refers := referencesOf(view, last)
		backlog.add(refers.dropped(last))
		spent := time.Since(began)
		last = refers
		if refused == nil {
			backlog = r.drop(ctx, refers, backlog)
		}
		again := KeyGrace
		if !backlog.empty() || refused != nil {
			again = tryAgain
		}
		r.wait(ctx, view.Position, again, max(gather, share*spent))
	}
	return ctx.Err()
}

// wait returns when the world is beyond a position and a moment has passed, when
// so much time has passed, or when ctx is done.
func (r *Reconciler) wait(ctx context.Context, position uint64, most, moment time.Duration) {
	late := time.NewTimer(most)
	defer late.Stop()
	select {
	case <-r.World.Changed(position):
	case <-late.C:
	case <-ctx.Done():
		return
	}
	pause := time.NewTimer(moment)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-ctx.Done():
	}
}

// add makes what others refer to part of r.
func (r *References) add(others *References) {
	maps.Copy(r.folders, others.folders)
	maps.Copy(r.files, others.files)
	maps.Copy(r.keys, others.keys)
}

// drop deletes what resources referred to and no longer do, and answers what
// could not be deleted. What is referred to again, such as a file in a folder of
// which the rest is not, stays.
func (r *Reconciler) drop(ctx context.Context, refers world, gone *References) (left *References) {
	left = newReferences()
	if gone.empty() {
		return left
	}
	for id := range gone.keys {
		if refers.dataKey(id) {
			continue
		}
		if err := r.Keys.Shred(ctx, id); err != nil {
			r.complain(ctx, "data key "+id, err)
			left.keys[id] = true
		}
	}
	for key := range gone.files {
		if err := r.deleteBlob(ctx, refers, key); err != nil {
			r.complain(ctx, key, err)
			left.files[key] = true
		}
	}
	for folder := range gone.folders {
		files, err := r.Blobs.Files(ctx, folder)
		for name := range files.Sizes {
			err = errors.Join(err, r.deleteBlob(ctx, refers, folder+name))
		}
		if err != nil {
			r.complain(ctx, folder, err)
			left.folders[folder] = true
		}
	}
	return left
}

func (r *Reconciler) complain(ctx context.Context, what string, err error) {
	if err != nil && ctx.Err() == nil {
		r.log.Warn("what nothing refers to any more could not be deleted yet", "what", what, "error", err)
	}
}

func (r *Reconciler) deleteBlob(ctx context.Context, refers world, key string) error {
	if !ours(key) || refers.blob(key) {
		return nil
	}
	return r.Blobs.Delete(ctx, key)
}

// Reconcile deletes every file and data key that is older than grace, not older
// than the log, and that nothing refers to.
func (r *Reconciler) Reconcile(ctx context.Context, grace time.Duration) error {
	began, err := r.authorize(ctx)
	if errors.Is(err, errEmptyLog) {
		return nil
	}
	if err != nil {
		return err
	}
	return errors.Join(r.sweepBlobs(ctx, began, grace), r.sweepKeys(ctx, began, grace))
}

// sweepBlobs lists first and looks at the world afterwards: see current.
func (r *Reconciler) sweepBlobs(ctx context.Context, began time.Time, grace time.Duration) error {
	var listed []blobs.File
	for _, root := range blobs.Roots() {
		for f, err := range r.Blobs.List(ctx, root) {
			if err != nil {
				return err
			}
			listed = append(listed, f)
		}
	}
	now := r.Now()
	refers, err := r.current(ctx)
	if err != nil {
		return err
	}
	orphans := orphanBlobs(listed, refers, began, now, grace)
	for _, key := range orphans {
		err = errors.Join(err, r.Blobs.Delete(ctx, key))
	}
	if len(orphans) > 0 {
		r.log.Info("files that nothing refers to were deleted", "files", len(orphans), "error", err)
	}
	return err
}

// sweepKeys lists first and looks at the world afterwards: see current.
func (r *Reconciler) sweepKeys(ctx context.Context, began time.Time, grace time.Duration) error {
	var listed []secrets.DataKey
	for key, err := range r.Keys.DataKeys(ctx) {
		if err != nil {
			return err
		}
		listed = append(listed, key)
	}
	now := r.Now()
	refers, err := r.current(ctx)
	if err != nil {
		return err
	}
	orphans := orphanKeys(listed, refers, began, r.started, now, grace)
	for _, id := range orphans {
		err = errors.Join(err, r.Keys.Shred(ctx, id))
	}
	if len(orphans) > 0 {
		r.log.Info("data keys that nothing refers to were erased", "keys", len(orphans), "error", err)
	}
	return err
}

// current is what the world refers to, at a position not before the last event
// of now. Whoever has listed before it knows all that was referred to when it
// was listed, and what is stored since is not in the list.
func (r *Reconciler) current(ctx context.Context) (world, error) {
	end, err := r.Log.Last(ctx)
	if err == nil {
		err = r.World.WaitFor(ctx, end.Position)
	}
	if err != nil {
		return nil, err
	}
	return referencesOf(r.World.View(), nil), nil
}
