package backup

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"filippo.io/age"
	"golang.org/x/mod/sumdb/note"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/installation"
	"anneal/eventlog/integrity"
	"anneal/eventlog/kv"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/transparency"
	"anneal/internal/datadir"
	"anneal/projections"
)

// RestoreSettings are the settings of a restore. At most one of Position and Time is set. If both
// are zero, the state of the newest backup is restored.
type RestoreSettings struct {
	Position   uint64    // restore the state at this position of the log
	Time       time.Time // restore the state at this time
	Identities []age.Identity
	// Bucket is the URL of the bucket for the restored files; "" is the directory blobs in the data
	// directory. If the backup only lists files (see FileList.References), Bucket is the bucket
	// that has them.
	Bucket string
	// Cluster are the options of the NATS cluster for the log; nil restores to an embedded server.
	// The cluster must have no installation. If a restore to it was interrupted, Restore continues it;
	// until then no control plane can join.
	Cluster *natsserver.ConnectOptions
	Logger  *slog.Logger // receives warnings about the restore
	// Progress is called at the beginning of each step with a text such as "restoring events"; nil
	// reports nothing.
	Progress func(step string)
	// Key verifies the signatures of the manifests. If it is nil, the key in the backup itself
	// verifies them: that detects changed manifests, but not the backup of another installation.
	// Manifests of earlier versions of anneal, which have no signature, are then accepted.
	Key note.Verifier

	// intercept, in tests, is called for each change of the bucket: see blobs.Options.Intercept
	intercept func(change, key string, do func() error) error
}

// Restored describes a restored installation.
type Restored struct {
	Backup string `json:"backup"` // ID of the chosen backup
	eventlog.Checkpoint
	Time     time.Time `json:"time"` // time of the last restored event
	Files    int       `json:"files"`
	Bytes    int64     `json:"bytes"` // total size of the restored files in bytes
	DataKeys int       `json:"dataKeys"`
	// Key is the name of the key that signed all manifests; "" if a manifest is not signed.
	Key    string `json:"key,omitempty"`
	SHA256 string `json:"sha256"` // digest of the restored state, as GET /v1/system/digest returns it
	// Missing are the files and data keys that the resources refer to and that no backup has.
	Missing []string `json:"missing,omitempty"`
}

// A restore is the state of one call of Restore. dir is a temporary directory beside the data
// directory.
type restore struct {
	RestoreSettings
	target *blobs.Store
	dir    datadir.Dir
	read   []Manifest // manifests of the newest backup and its parents
	all    []Manifest // manifests of the chosen backup, from, and of its parents, newest first
	from   Manifest
	result Restored

	log    *natsserver.Connection
	marker installation.Restore // in the record of the cluster until the restore is complete
	// complete reports that an earlier call has completed the restore to the cluster, but not created
	// the data directory: then nothing in the cluster is changed.
	complete bool
	sync     func() error                    // makes the messages durable that were published to the log so far
	mark     func(integrity.HashChain) error // records the hash chain of the restored log
	refs     reconcile.Referenced
	secret   confidential
}

// Restore creates the data directory dir from a backup. dir must not exist, or must be empty:
// Restore fills a temporary directory, and renames it when the restore is complete. No control
// plane starts with the temporary directory. Restore compares the hash chain of the events with the
// manifest's.
func Restore(ctx context.Context, target *blobs.Store, dir datadir.Dir, s RestoreSettings) (Restored, error) {
	restored, err := restoreTo(ctx, target, dir, s)
	return restored, advise(err, restoreAdvice)
}

func restoreTo(ctx context.Context, target *blobs.Store, dir datadir.Dir, s RestoreSettings) (Restored, error) {
	// clean, because the temporary directory must be beside the directory also if its path ends with a
	// slash
	path, err := filepath.Abs(string(dir))
	if err != nil {
		return Restored{}, err
	}
	dir = datadir.Dir(path)
	if err := checkEmpty(dir); err != nil {
		return Restored{}, err
	}
	r := &restore{RestoreSettings: s, target: target, dir: dir + ".restoring"}
	if err := r.choose(ctx); err != nil {
		return Restored{}, err
	}
	release, err := r.dir.BeginRestore()
	if err != nil {
		return Restored{}, err
	}
	defer release()
	if err := checkEmpty(dir); err != nil { // another restore may have completed before this one had the lock
		return Restored{}, err
	}
	if err := r.fill(ctx); err != nil {
		return Restored{}, err
	}
	if err := os.Remove(string(dir)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return Restored{}, err
	}
	if err := os.Rename(string(r.dir), string(dir)); err != nil {
		return Restored{}, err
	}
	return r.result, disk.Sync(parent(dir))
}

func checkEmpty(dir datadir.Dir) error {
	if entries, err := os.ReadDir(string(dir)); err == nil && len(entries) > 0 {
		return domain.Errorf(domain.FailedPrecondition, "%s is not empty: restore to a new directory with --data", dir)
	}
	return nil
}

// choose selects the backup to restore: the newest, or the earliest one that has the position or
// all events up to the time.
func (r *restore) choose(ctx context.Context) error {
	ids, err := IDs(ctx, r.target)
	if err != nil {
		return err
	}
	if len(ids) == 0 {
		return noBackup("the target")
	}
	m, err := r.readManifest(ctx, ids[len(ids)-1])
	if err != nil {
		return err
	}
	switch {
	case r.Position > m.Position:
		return domain.Errorf(domain.OutOfRange, "position %d is after the newest backup, which ends at position %d: "+
			"give an earlier position, or none for the newest backup", r.Position, m.Position)
	case r.Time.After(m.stateTime()) && !m.hasStateAt(r.Time):
		return domain.Errorf(domain.OutOfRange, "%s is after the newest backup, which has the state at %s: give "+
			"an earlier time, or none for the newest backup", r.Time.Format(time.RFC3339),
			m.stateTime().Format(time.RFC3339))
	}
	r.all = []Manifest{m}
	for m.Parent != "" {
		if m, err = r.readManifest(ctx, m.Parent); err != nil {
			return fmt.Errorf("read the backup before %s: %w", r.all[len(r.all)-1].ID, err)
		}
		if r.Position > 0 && m.Position >= r.Position || !r.Time.IsZero() && m.hasStateAt(r.Time) {
			r.all = nil // the parent of the backup also has the wanted state, and is earlier
		}
		r.all = append(r.all, m)
	}
	r.from = r.all[0]
	r.result.Backup = r.from.ID
	return nil
}

// readManifest reads a manifest, and verifies its signature if r.Key is set.
func (r *restore) readManifest(ctx context.Context, id string) (Manifest, error) {
	m, err := readManifest(ctx, r.target, id)
	if err == nil && r.Key != nil {
		err = m.verify(r.Key)
	}
	r.read = append(r.read, m)
	return m, err
}

// verifyManifests verifies the signatures of all manifests with r.Key or, if it is nil, with the
// key in the backup.
func (r *restore) verifyManifests() error {
	key := r.Key
	if key == nil {
		secret, err := r.dir.Key("pepper")
		if err != nil {
			return err
		}
		signer, err := transparency.NewSigner(secret)
		if err != nil {
			return err
		}
		if key, err = transparency.ParseKey(signer.Key()); err != nil {
			return err
		}
	}
	r.result.Key = key.Name()
	for _, m := range r.read {
		switch err := m.verify(key); {
		case isUnsigned(err) && r.Key == nil:
			r.Logger.Warn("the manifest has no signature: an earlier version of anneal created the backup, or the "+
				"signature was removed", "id", m.ID)
			r.result.Key = ""
		case err != nil:
			return err
		}
	}
	return nil
}

func (r *restore) fill(ctx context.Context) (err error) {
	if r.secret, err = readSecrets(ctx, r.target, r.from, r.Identities); err != nil {
		return err
	}
	if err := r.writeKeys(); err != nil {
		return err
	}
	if err := r.verifyManifests(); err != nil {
		return err
	}
	closeLog, err := r.openLog(ctx)
	if err != nil {
		return err
	}
	defer closeLog()
	for _, step := range []struct {
		what string
		run  func(context.Context) error
	}{{"events", r.putEvents}, {"state", r.fold}, {"data keys", r.putRecords}, {"files", r.putFiles},
		{"usage records", r.putUsage}} {
		if r.Progress != nil {
			r.Progress("restoring " + step.what)
		}
		if err := step.run(ctx); err != nil {
			return fmt.Errorf("restore %s: %w", step.what, err)
		}
	}
	if r.from.Files.References {
		err := r.dir.SuspendDeletions("restored from backup %s, with the bucket of the earlier installation: no file "+
			"is deleted until you remove this file. Remove it when the earlier installation no longer runs.", r.from.ID)
		if err != nil {
			return err
		}
	}
	if err := r.completeCluster(ctx); err != nil {
		return err
	}
	return r.dir.CompleteRestore()
}

func (r *restore) writeKeys() error {
	for _, path := range slices.Sorted(maps.Keys(r.secret.Files)) {
		if err := os.MkdirAll(parent(datadir.Dir(r.dir.Path(path))), 0o700); err != nil {
			return err
		}
		if err := datadir.WritePrivate(r.dir.Path(path), r.secret.Files[path]); err != nil {
			return err
		}
	}
	return nil
}

func (r *restore) openLog(ctx context.Context) (closeLog func(), err error) {
	if r.Cluster != nil {
		return r.openCluster(ctx)
	}
	server, err := natsserver.Start(natsserver.Options{Dir: r.dir.Path("nats"), Log: r.Logger})
	if err != nil {
		return nil, err
	}
	r.log, r.sync, r.mark = server.Connection, server.Sync, server.SetChain
	return server.Close, nil
}

// fold folds the restored events into the world, and saves it as a snapshot.
func (r *restore) fold(ctx context.Context) (err error) {
	states, err := archive.Open(r.dir.Path(datadir.Archive))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, states.Close()) }()
	world, err := projections.OpenArchived(ctx, r.log.Log(), r.dir.Path("snapshots"), states)
	if err != nil {
		return err
	}
	view := world.View()
	if view.Checkpoint != r.result.Checkpoint {
		return domain.Errorf(domain.DataLoss, "the restored log ends at position %d (event %s) instead of %d (event %s): "+
			"repeat the restore or, if the error remains, restore another backup",
			view.Position, view.EventID, r.result.Position, r.result.EventID)
	}
	digest, err := view.Digest()
	if err != nil {
		return err
	}
	r.result.SHA256, r.refs = digest.SHA256, reconcile.In(view)
	return world.Save(r.dir.Path("snapshots"))
}

// putRecords stores the data keys and the responses of the idempotency store.
func (r *restore) putRecords(ctx context.Context) error {
	if err := r.findKeys(ctx); err != nil || r.complete {
		return err
	}
	ring, err := secrets.OpenKeyRing(r.dir.RingPath())
	if err != nil {
		return err
	}
	var vault *secrets.Vault
	var answers *idempotency.Store
	if r.Cluster != nil {
		vault, err = secrets.OpenVault(ctx, r.log.Control(), ring)
	} else {
		vault, err = secrets.OpenLocalVault(ctx, r.log.Control(), ring, r.dir.LocalStore("datakeys", r.Logger))
	}
	if err != nil {
		return err
	}
	err = putAll(ctx, vault.Records(), r.secret.DataKeys)
	if err == nil {
		err = vault.CheckRing(ctx)
	}
	if err = errors.Join(err, vault.Close()); err != nil {
		return err
	}
	if r.Cluster != nil {
		answers, err = idempotency.Open(ctx, r.log.Control())
	} else {
		answers, err = idempotency.OpenLocal(ctx, r.log.Control(), r.dir.LocalStore("answers", r.Logger))
	}
	if err != nil {
		return err
	}
	err = r.secret.answers(ctx, r.target, r.from, r.Identities, func(key string, record []byte) error {
		record, err := idempotency.AsOf(record, r.result.Position, r.result.Time)
		if err != nil {
			return err
		}
		return putRecord(ctx, answers.Records(), key, record)
	})
	return errors.Join(err, answers.Close())
}

// findKeys finds the data keys that resources at the restored position refer to but that were
// erased before the chosen backup. It takes them from earlier backups.
func (r *restore) findKeys(ctx context.Context) error {
	needed := map[string]bool{}
	for id := range r.refs.DataKeys() {
		r.result.DataKeys++
		if r.secret.DataKeys[id] == nil {
			needed[id] = true
		}
	}
	for _, m := range r.all[1:] {
		if len(needed) == 0 {
			break
		}
		earlier, err := readSecrets(ctx, r.target, m, r.Identities)
		if domain.CodeOf(err) == domain.FailedPrecondition {
			continue // the earlier backup is encrypted for other recipients
		}
		if err != nil {
			return err
		}
		for id := range needed {
			if record := earlier.DataKeys[id]; record != nil {
				r.secret.DataKeys[id] = record
				delete(needed, id)
			}
		}
	}
	for id := range needed {
		r.result.Missing = append(r.result.Missing, "data key "+id)
	}
	return nil
}

func putAll(ctx context.Context, store kv.Store, records map[string][]byte) error {
	for _, id := range slices.Sorted(maps.Keys(records)) {
		if err := putRecord(ctx, store, id, records[id]); err != nil {
			return err
		}
	}
	return nil
}

// putRecord stores a record, unless an interrupted restore has done so.
func putRecord(ctx context.Context, store kv.Store, id string, record []byte) error {
	there, revision, err := store.Get(ctx, id)
	if err == nil && (revision == 0 || !bytes.Equal(there, record)) {
		_, err = store.Put(ctx, id, record, revision)
	}
	return err
}

// putFiles copies the files that resources at the restored position refer to. It takes files that
// were deleted before the chosen backup from earlier backups.
func (r *restore) putFiles(ctx context.Context) error {
	bucket, err := blobs.Open(ctx, blobs.Options{URL: r.Bucket, Dir: r.dir.Path("blobs"), Logger: r.Logger,
		BaseURL: "http://localhost/unused", Key: make([]byte, 16), Intercept: r.intercept})
	if err != nil {
		return err
	}
	err = r.copyFiles(ctx, bucket)
	return errors.Join(err, bucket.Close())
}

func (r *restore) copyFiles(ctx context.Context, bucket *blobs.Store) error {
	if !r.from.Files.References {
		if err := r.claim(ctx, bucket); err != nil {
			return err
		}
	}
	wanted := map[string]int64{} // sizes of the recorded files that are not copied yet, by key
	for key, size := range r.refs.Stored() {
		wanted[key] = size
	}
	for n, m := range r.all {
		if m.Files.List == nil || n > 0 && len(wanted) == 0 {
			continue
		}
		err := lines(ctx, r.target, *m.Files.List, func(line []byte) error {
			var f File
			if err := json.Unmarshal(line, &f); err != nil {
				return err
			}
			size, recorded := wanted[f.Key]
			if !r.refs.Blob(f.Key) || n > 0 && !recorded || recorded && size != f.Size {
				return nil
			}
			delete(wanted, f.Key)
			return r.copyFile(ctx, bucket, f)
		})
		if err != nil {
			return err
		}
	}
	r.result.Missing = append(r.result.Missing, slices.Sorted(maps.Keys(wanted))...)
	return nil
}

// claim checks that no installation uses the bucket, and claims it for the restored one. A restore
// that was interrupted has claimed it too.
func (r *restore) claim(ctx context.Context, bucket *blobs.Store) error {
	owner, err := bucket.Owner(ctx)
	if err != nil || owner == blobs.RestoredOwner(r.from.Log) {
		return err
	}
	if owner != "" {
		return domain.Errorf(domain.FailedPrecondition, "the bucket for the restored files already has the files of "+
			"an installation: choose an empty bucket")
	}
	return bucket.Claim(ctx, blobs.RestoredOwner(r.from.Log))
}

func (r *restore) copyFile(ctx context.Context, bucket *blobs.Store, f File) error {
	r.result.Files++
	r.result.Bytes += f.Size
	if f.Object.Key == "" { // the backup only lists the file: the bucket must have it
		size, err := bucket.Size(ctx, f.Key)
		if domain.CodeOf(err) == domain.NotFound || err == nil && size != f.Size {
			r.result.Files--
			r.result.Bytes -= f.Size
			r.result.Missing = append(r.result.Missing, f.Key)
			return nil
		}
		return err
	}
	return copyObject(ctx, r.target, f.Object, bucket, f.Key)
}
