package reconcile

import (
	"path"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/secrets"
)

// Files that something is about to refer to are at most so old: those of an
// upload that is being stored, of results whose signed URLs are good for 12 h,
// or of a request (blobs.TransientTime). A file is as old as the youngest beside
// it, so that what takes longer than that is safe while it goes on.
const Grace = blobs.TransientTime

// UploadTime is how long files wait for the validation of the upload that they
// belong to: from then on they are orphans, although their resource still
// expects an upload.
const UploadTime = domain.UploadTime

// KeyGrace is Grace for data keys: a value is sealed moments before its event is
// appended.
const KeyGrace = 10 * time.Minute

// grain is how coarse the times of files are: object stores date them by seconds.
const grain = time.Second

// orphanBlobs are the files that no resource refers to and that are older than
// grace, and those of uploads that nobody validated within UploadTime. It is
// pure: listed is what the bucket held before the view was taken of which w are
// the references. A file older than the log, which began then, is another log's.
func orphanBlobs(listed []blobs.File, w world, began, now time.Time, grace time.Duration) (orphans []string) {
	youngest := map[string]time.Time{}
	for _, f := range listed {
		if dir := path.Dir(f.Key); f.Time.After(youngest[dir]) {
			youngest[dir] = f.Time
		}
	}
	for _, f := range listed {
		age := now.Sub(youngest[path.Dir(f.Key)])
		expired := strings.HasPrefix(f.Key, blobs.ArrivalRoot) && age >= UploadTime
		if ours(f.Key) && !f.Time.Before(began.Add(-grain)) && (expired || !w.blob(f.Key) && age >= grace) {
			orphans = append(orphans, f.Key)
		}
	}
	return orphans
}

// orphanKeys is orphanBlobs for data keys. A key that does not tell when it was
// made is as old as the process: what was at work before has ended with it, or
// has told by now.
func orphanKeys(listed []secrets.DataKey, w world, began, started, now time.Time, grace time.Duration) (orphans []string) {
	for _, key := range listed {
		made := key.Time
		if made.IsZero() {
			made = started
		}
		if !w.dataKey(key.ID) && !made.Before(began.Add(-grain)) && now.Sub(made) >= grace {
			orphans = append(orphans, key.ID)
		}
	}
	return orphans
}
