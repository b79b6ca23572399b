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

// A Source is the running installation that is backed up.
type Source struct {
	Control  *nats.Conn // connection to the NATS account with the streams
	Log      eventlog.Log
	World    *projections.World // state of all resources; it follows the log and has only durable events
	Files    *blobs.Store
	DataKeys kv.Store
	Answers  kv.Store // idempotency store: stored responses by key
	Dir      datadir.Dir
	Version  string               // version of this program, which the manifest states
	Signer   *transparency.Signer // signs the manifests of backups
	Logger   *slog.Logger
}

// Settings state, for one backup, for which age keys it is encrypted, and whether it copies files.
type Settings struct {
	Recipients []string // public keys of age, the encryption tool, such as age1…; at least one
	References bool     // only list the files, because the installation's own bucket keeps them
}

// A run is one backup in progress.
type run struct {
	Source
	Settings
	copying func(bytes int64) // called with the number of bytes that this backup has copied so far
	target  *blobs.Store
	last    *Manifest // last signed backup of the same log, which this one continues; nil if there is none
	id      string
	newest  string // ID of the newest backup in the bucket when this one began; "" if there was none
	copied  int64
	added   int // number of files that were copied or, with References, listed

	files  map[string]File // by key: the files of the last backup and those that this backup has copied or listed
	keys   map[string][]byte
	absent []string // keys of files and IDs of data keys that the log records but the installation lacks
}

// Run adds a backup to target, and returns its manifest when it is complete. The installation may
// change while Run copies it: the backup has the state at one position of the log. Run copies only
// what changed since the last backup in target. It returns FailedPrecondition if target has the
// backups of another installation. Run calls copying with the number of bytes copied so far.
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
	view, at, err := r.copyReferenced(ctx)
	if err != nil {
		return Manifest{}, err
	}
	last, err := from.Log.At(ctx, view.Position)
	if err != nil {
		return Manifest{}, err
	}
	m.Checkpoint, m.Time, m.EventTime = view.Checkpoint, at, last.Time.UTC()
	if m.Files, err = r.listFiles(ctx, view); err != nil {
		return Manifest{}, err
	}
	if m.Secrets, err = r.putSecrets(ctx, recipients); err != nil {
		return Manifest{}, err
	}
	if m.Answers, err = r.putAnswers(ctx, recipients); err != nil {
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

// resume finds the last signed backup of the same log in the target. log is the ID of the first
// event.
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
			continue // the log at this position has another event, because the installation was restored since
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

// checkTarget returns an error if another process has added or removed backups in the target since
// this backup began. This backup would then lack its parent, or would not be the newest.
func (r *run) checkTarget(ctx context.Context) error {
	ids, err := IDs(ctx, r.target)
	switch {
	case err != nil:
		return err
	case r.last != nil && !slices.Contains(ids, r.last.ID):
		return domain.Errorf(domain.FailedPrecondition, "backup %s, which this backup continues, was removed from the "+
			"target while this backup ran: create the backup again, and "+
			"prune the target only through the server that backs up to it", r.last.ID)
	case newestOf(ids) > r.newest:
		return domain.Errorf(domain.FailedPrecondition, "another server added backup %s to the target while this "+
			"backup ran: create the backup again, and back up to each target from one server only", newestOf(ids))
	}
	return nil
}

// maxPasses is the maximum number of times that copyReferenced copies files and data keys before it
// reports those that are still missing.
const maxPasses = 10

// copyReferenced copies files and data keys until it has all that the resources of the newest view
// refer to, and returns that view and its time: the view has all events that the log had then. A
// file can be deleted before it is copied; the next pass then uses a later view, whose resources no
// longer refer to the file. Few passes are needed, because the reconciler deletes the files of a
// resource within a second after the event.
func (r *run) copyReferenced(ctx context.Context) (*projections.View, time.Time, error) {
	for pass := 1; ; pass++ {
		at := time.Now().UTC()
		if err := r.World.Confirm(ctx, r.Log, at); err != nil {
			return nil, at, err
		}
		view := r.World.View()
		refs := reconcile.In(view)
		if err := r.copyFiles(ctx, refs); err != nil {
			return nil, at, err
		}
		if err := r.readKeys(ctx); err != nil {
			return nil, at, err
		}
		r.absent = r.lacking(refs)
		if len(r.absent) == 0 || pass == maxPasses {
			if len(r.absent) > 0 {
				r.Logger.Warn("the backup is incomplete: the log records files or data keys that the installation no "+
					"longer has",
					"count", len(r.absent), "first", r.absent[0])
			}
			return view, at, nil
		}
	}
}

// lacking returns the keys of the files and the IDs of the data keys that refs has and that were
// not copied.
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

// copyFiles copies the files that refs has, except those that were copied before. A file whose size
// an event has recorded never changes. Any other file has changed if its modification time or size
// has.
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

// copyFile copies a file. It skips a file that was deleted or is damaged, which copyReferenced then
// reports as missing.
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
		r.Logger.Error("a file is damaged, so the backup does not contain it", "file", f.Key, "error", err)
		return nil
	case err != nil:
		return err
	}
	r.add(object)
	r.added++
	r.files[f.Key] = File{f.Key, f.Time, object}
	return nil
}

// add adds the size of a stored object to the copied bytes, and reports the progress.
func (r *run) add(o Object) {
	r.copied += o.Size
	r.copying(r.copied)
}

// readKeys adds the records of all data keys to r.keys. It does not remove data keys that were
// erased since the last pass, because resources of the view may still refer to them.
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

// listFiles stores the list of the copied files that resources of the view refer to.
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
		list.List = r.last.Files.List // the last backup has the same files
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

// putStreams stores the messages that the streams EVENTS and USAGE got since the last backup, and
// sets the fields of the manifest that describe them.
func (r *run) putStreams(ctx context.Context, m *Manifest) error {
	var chain integrity.HashChain
	if r.last != nil {
		hash, err := hex.DecodeString(r.last.Hash)
		if err != nil || len(hash) != len(chain.Hash) {
			return advise(damaged(r.last.ID, "the manifest of backup %s has an invalid hash chain",
				r.last.ID), createAdvice)
		}
		chain.Checkpoint, m.Parent = r.last.Checkpoint, r.last.ID
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
		return fmt.Errorf("read the log: it ends at position %d (event %s) instead of position %d (event %s)",
			chain.Position, chain.EventID, m.Position, m.EventID)
	}
	m.Hash = chain.Hash.String()
	if err := r.putUsage(ctx, m); err != nil {
		return err
	}
	for _, s := range slices.Concat(m.Events, m.Usage) {
		r.add(s.Object)
	}
	return nil
}

// putUsage stores the messages that the stream USAGE got since the last backup. If the stream was
// created since, for example by a restore, its sequences are others than those of the last backup:
// then putUsage stores all of its messages.
func (r *run) putUsage(ctx context.Context, m *Manifest) error {
	stream, err := streamcopy.StateOf(ctx, r.Control, metering.Stream)
	if err != nil {
		return err
	}
	m.UsageLast, m.UsageCreated, m.UsageComplete = stream.Last, stream.Created, true
	after := uint64(0)
	if r.last != nil && r.last.UsageCreated.Equal(stream.Created) && r.last.UsageLast <= stream.Last {
		after, m.UsageComplete = r.last.UsageLast, false
	}
	m.Usage, err = putSegments(ctx, r.target, "usage/", r.id,
		streamcopy.Read(ctx, r.Control, metering.Stream, after, stream.Last),
		func(streamcopy.Message) error { return nil })
	return err
}
