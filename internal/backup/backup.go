package backup

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/eventlog/kv"
	"anneal/eventlog/metering"
	"anneal/eventlog/streamcopy"
	"anneal/eventlog/transparency"
	"anneal/internal/datadir"
	"anneal/projections"
)

// A Source is a running installation.
type Source struct {
	Control  *nats.Conn // connection into the account with the streams
	Log      eventlog.Log
	World    *projections.World // follows the log; has durable events only
	Files    *blobs.Store
	DataKeys kv.Store
	Answers  kv.Store // stored responses, by idempotency key
	Dir      datadir.Dir
	Version  string               // of anneal
	Signer   *transparency.Signer // signs the manifests
	Logger   *slog.Logger
}

// Settings are the settings of one backup.
type Settings struct {
	Recipients []string // age recipients of the secrets, such as age1…; at least one
	References bool     // record the files instead of copying them, because their bucket keeps them
}

// A run is one backup in progress.
type run struct {
	Source
	Settings
	copying func(bytes int64) // reports the number of bytes that were copied
	target  *blobs.Store
	last    *Manifest // the last backup of the same log; nil if there is none
	id      string
	newest  string // ID of the newest backup in the bucket when this one began; "" if there was none
	copied  int64
	added   int // files that were copied, or recorded without a copy

	files  map[string]File // by key: those of the last backup, and those that this backup has copied
	keys   map[string][]byte
	absent []string // recorded files and data keys that the installation lacks
}

// Run adds a backup to the bucket target, and returns when it is complete. The installation may change
// meanwhile: the backup has its state at one position. Run copies what changed since the last backup in
// the bucket. The error is FailedPrecondition when the bucket has the backups of another installation.
// copying is called with the number of bytes that were copied so far.
func Run(ctx context.Context, from Source, target *blobs.Store, s Settings, copying func(bytes int64)) (Manifest,
	error) {
	r := &run{Source: from, Settings: s, copying: copying, target: target, id: time.Now().UTC().Format(idLayout),
		files: map[string]File{}, keys: map[string][]byte{}}
	first, err := from.Log.At(ctx, 1)
	if err != nil {
		return Manifest{}, err
	}
	if err := r.resume(ctx, first.ID); err != nil {
		return Manifest{}, advise(err, createAdvice)
	}
	recipients, err := parseRecipients(r.Recipients)
	if err != nil {
		return Manifest{}, err
	}
	m := Manifest{Format: format, ID: r.id, Version: from.Version, Log: first.ID, Recipients: r.Recipients}
	view, err := r.copyReferenced(ctx)
	if err != nil {
		return Manifest{}, err
	}
	m.Checkpoint, m.Time = view.Checkpoint, time.Now().UTC()
	if m.Files, err = r.listFiles(ctx, view); err != nil {
		return Manifest{}, err
	}
	if m.Secrets, err = r.putSecrets(ctx, recipients); err != nil {
		return Manifest{}, err
	}
	if err := r.putStreams(ctx, &m); err != nil {
		return Manifest{}, err
	}
	if err := r.checkTarget(ctx); err != nil {
		return Manifest{}, err
	}
	m.EndTime, m.Copied = time.Now().UTC(), r.copied
	return m, r.putManifest(ctx, &m)
}

// resume finds the last backup of the log, whose first event has the given ID.
func (r *run) resume(ctx context.Context, log string) error {
	ids, err := IDs(ctx, r.target)
	if err != nil {
		return err
	}
	if r.newest = newestOf(ids); r.newest >= r.id {
		return domain.Errorf(domain.FailedPrecondition, "the target has backup %s, which is newer than the clock of this "+
			"machine (%s): set the clock, or move %s out of the target", r.newest, r.id, manifestPrefix+r.newest+manifestSuffix)
	}
	verifier, err := transparency.ParseKey(r.Signer.Key())
	if err != nil {
		return err
	}
	for _, id := range slices.Backward(ids) {
		m, err := readManifest(ctx, r.target, id)
		if err != nil {
			return err
		}
		if err := m.checkLog(log); err != nil {
			return err
		}
		switch err := m.verify(verifier); {
		case isUnsigned(err):
			r.Logger.Warn("an earlier version of anneal made the last backup: its manifest is not signed, so everything is "+
				"copied again", "id", id)
			continue
		case err != nil:
			return err
		}
		e, err := r.Log.At(ctx, m.Position)
		if domain.CodeOf(err) == domain.NotFound || err == nil && e.ID != m.EventID {
			continue // the installation was restored from an earlier backup
		}
		if err != nil {
			return err
		}
		r.last = &m
		break
	}
	if r.last == nil || r.last.Files.List == nil || r.last.Files.References != r.References {
		return nil
	}
	return lines(ctx, r.target, *r.last.Files.List, func(line []byte) error {
		var f File
		err := json.Unmarshal(line, &f)
		r.files[f.Key] = f
		return err
	})
}

func newestOf(ids []string) string {
	if len(ids) == 0 {
		return ""
	}
	return ids[len(ids)-1]
}

// checkTarget returns an error if another process has added or removed manifests since the backup began, so
// that this one would lack its parent, or not be the newest.
func (r *run) checkTarget(ctx context.Context) error {
	ids, err := IDs(ctx, r.target)
	switch {
	case err != nil:
		return err
	case r.last != nil && !slices.Contains(ids, r.last.ID):
		return domain.Errorf(domain.FailedPrecondition, "backup %s, which this backup continues, was removed from the "+
			"target meanwhile: create the backup again, and "+
			"prune the target only through the server that backs up to it", r.last.ID)
	case newestOf(ids) > r.newest:
		return domain.Errorf(domain.FailedPrecondition, "another server has added backup %s to the target meanwhile: create "+
			"the backup again, and back up to each target from one server only", newestOf(ids))
	}
	return nil
}

// maxPasses is how often copyReferenced copies what was added meanwhile, before it reports what is
// absent.
const maxPasses = 10

// copyReferenced copies files and data keys, and returns a view to which they belong: it has
// everything that the resources of the view have recorded. Something may be deleted before it is
// copied; copyReferenced then copies what was added since, and takes a later view. A later pass is
// short, and the reconciler deletes the data of a resource a second after its event, so few passes
// are needed.
func (r *run) copyReferenced(ctx context.Context) (*projections.View, error) {
	for pass := 1; ; pass++ {
		view := r.World.View()
		refs := reconcile.In(view)
		if err := r.copyFiles(ctx, refs); err != nil {
			return nil, err
		}
		if err := r.readKeys(ctx); err != nil {
			return nil, err
		}
		r.absent = r.lacking(refs)
		if len(r.absent) == 0 || pass == maxPasses {
			if len(r.absent) > 0 {
				r.Logger.Warn("the backup lacks files or data keys that the log records but the installation does not have",
					"count", len(r.absent), "first", r.absent[0])
			}
			return view, nil
		}
	}
}

// lacking returns the keys of the recorded files and the IDs of the data keys that were not copied.
func (r *run) lacking(refs reconcile.Referenced) (absent []string) {
	for key, size := range refs.Stored() {
		if f, ok := r.files[key]; !ok || f.Size != size {
			absent = append(absent, key)
		}
	}
	for id := range refs.DataKeys() {
		if r.keys[id] == nil {
			absent = append(absent, "data key "+id)
		}
	}
	slices.Sort(absent)
	return absent
}

// copyFiles copies the files that resources refer to, except those that were copied before. A file that
// an event has recorded never changes; any other file has changed if its time has.
func (r *run) copyFiles(ctx context.Context, refs reconcile.Referenced) error {
	recorded := maps.Collect(refs.Stored())
	for _, root := range blobs.Roots() {
		for f, err := range r.Files.List(ctx, root) {
			if err != nil {
				return err
			}
			before, ok := r.files[f.Key]
			if size, same := recorded[f.Key]; !same || size != f.Size {
				ok = ok && before.Modified.Equal(f.Time)
			}
			if !refs.Blob(f.Key) || ok && before.Size == f.Size {
				continue
			}
			if err := r.copyFile(ctx, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// copyFile copies a file, unless it was deleted or is damaged: copyReferenced reports what is then
// absent.
func (r *run) copyFile(ctx context.Context, f blobs.File) error {
	if r.References {
		r.added++
		r.files[f.Key] = File{Key: f.Key, Modified: f.Time, Object: Object{Size: f.Size}}
		return nil
	}
	content, err := r.Files.Get(ctx, f.Key)
	if code := domain.CodeOf(err); code == domain.NotFound || code == domain.DataLoss {
		return nil
	}
	if err != nil {
		return err
	}
	object, err := putContent(ctx, r.target, objectKey("files/"+r.id+"/", f.Key), content)
	switch err := errors.Join(err, content.Close()); {
	case domain.CodeOf(err) == domain.DataLoss:
		r.Logger.Error("a file is damaged, and not in the backup", "file", f.Key, "error", err)
		return nil
	case err != nil:
		return err
	}
	r.add(object)
	r.added++
	r.files[f.Key] = File{f.Key, f.Time, object}
	return nil
}

// add counts an object that was stored.
func (r *run) add(o Object) {
	r.copied += o.Size
	r.copying(r.copied)
}

// readKeys reads the records of all data keys. It keeps those of keys that were erased meanwhile: the
// resources of the view may still refer to them.
func (r *run) readKeys(ctx context.Context) error {
	read, err := records(ctx, r.DataKeys)
	maps.Copy(r.keys, read)
	return err
}

func records(ctx context.Context, store kv.Store) (map[string][]byte, error) {
	ids, err := store.Keys(ctx)
	if err != nil {
		return nil, err
	}
	all := make(map[string][]byte, len(ids))
	for _, id := range ids {
		record, revision, err := store.Get(ctx, id)
		if err != nil {
			return nil, err
		}
		if revision != 0 {
			all[id] = record
		}
	}
	return all, nil
}

// listFiles stores the list of the files that resources of the view refer to.
func (r *run) listFiles(ctx context.Context, view *projections.View) (list FileList, err error) {
	refs := reconcile.In(view)
	list.References, list.Missing = r.References, r.absent[:min(len(r.absent), maxMissing)]
	var listed []File
	for _, key := range slices.Sorted(maps.Keys(r.files)) {
		if f := r.files[key]; refs.Blob(key) {
			listed = append(listed, f)
			list.Bytes += f.Size
		}
	}
	switch list.Count = len(listed); {
	case list.Count == 0:
		return list, nil
	case r.last != nil && r.added == 0 && list.Count == r.last.Files.Count && r.References == r.last.Files.References:
		list.List = r.last.Files.List // the same files
		return list, nil
	}
	object, err := put(ctx, r.target, "lists/"+r.id+".zst", compressed(func(w io.Writer) error {
		encoder := json.NewEncoder(w)
		for _, f := range listed {
			if err := encoder.Encode(f); err != nil {
				return err
			}
		}
		return nil
	}))
	list.List = &object
	r.add(object)
	return list, err
}

// putStreams stores the messages of the streams since the last backup, and sets the hash of m.
func (r *run) putStreams(ctx context.Context, m *Manifest) error {
	var chain integrity.HashChain
	if r.last != nil {
		hash, err := hex.DecodeString(r.last.Hash)
		if err != nil || len(hash) != len(chain.Hash) {
			return advise(damaged(r.last.ID, "the manifest of backup %s has an invalid hash", r.last.ID), createAdvice)
		}
		chain.Checkpoint, m.Parent, m.UsageLast = r.last.Checkpoint, r.last.ID, r.last.UsageLast
		copy(chain.Hash[:], hash)
	}
	var err error
	m.Events, err = putSegments(ctx, r.target, "events/", r.id,
		streamcopy.Read(ctx, r.Control, eventlog.Stream, chain.Position, m.Position),
		func(m streamcopy.Message) error { return m.Extend(&chain) })
	if err != nil {
		return err
	}
	if chain.Checkpoint != m.Checkpoint {
		return fmt.Errorf("the log ends at position %d (event %s), and the backup has position %d (event %s)",
			chain.Position, chain.EventID, m.Position, m.EventID)
	}
	m.Hash = chain.Hash.String()
	last, err := streamcopy.Last(ctx, r.Control, metering.Stream)
	if err != nil {
		return err
	}
	if last < m.UsageLast { // the stream was created again
		m.UsageLast = 0
	}
	m.Usage, err = putSegments(ctx, r.target, "usage/", r.id,
		streamcopy.Read(ctx, r.Control, metering.Stream, m.UsageLast, last), func(streamcopy.Message) error { return nil })
	m.UsageLast = last
	for _, s := range slices.Concat(m.Events, m.Usage) {
		r.add(s.Object)
	}
	return err
}
