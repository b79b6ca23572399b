package reconcile

import (
	"path"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/secrets"
)

// Grace is how long unreferenced files are kept. A new file is unreferenced until an event refers
// to it, and Grace exceeds the time until that event: for an upload that is being stored, for
// results (their signed URLs are valid for 12 h) and for the files of a request
// (blobs.TransientTime). The age of a file is that of the newest file in its directory, so that the
// files of a long upload are kept while files are added to it.
const Grace = blobs.TransientTime

// UploadTime is how long uploaded files are kept until their upload is validated. Older files are
// orphans, although their resource still expects an upload.
const UploadTime = domain.UploadTime

// KeyGrace is the grace period of data keys. It is short because a value is sealed moments before
// its event is appended.
const KeyGrace = 10 * time.Minute

// timeResolution is the resolution of file times: object stores have times in seconds.
const timeResolution = time.Second

// orphanBlobs returns the keys of the files older than grace that no resource refers to, of the files
// of uploads that were not validated within UploadTime, and of the superseded logs and rollouts of
// earlier attempts (see blobs.Superseded) that are older than blobs.SupersededTime. The caller must
// have listed the bucket before it took the view for refs. A file older than began, the beginning of
// the log, belongs to another log and is not returned.
func orphanBlobs(listed []blobs.File, refs references, began, now time.Time, grace time.Duration) (orphans []string) {
	youngest := map[string]time.Time{}
	for _, f := range listed {
		if dir := path.Dir(f.Key); f.Time.After(youngest[dir]) {
			youngest[dir] = f.Time
		}
	}
	superseded := blobs.Superseded(listed)
	for _, f := range listed {
		age := now.Sub(youngest[path.Dir(f.Key)])
		expired := strings.HasPrefix(f.Key, blobs.StagingRoot) && age >= UploadTime ||
			superseded[f.Key] && now.Sub(f.Time) >= min(grace, blobs.SupersededTime)
		if isManaged(f.Key) && !f.Time.Before(began.Add(-timeResolution)) && (expired || !refs.blob(f.Key) && age >= grace) {
			orphans = append(orphans, f.Key)
		}
	}
	return orphans
}

// orphanKeys returns the IDs of the data keys that no resource refers to, that are older than
// grace, and that are not older than the log, which began at began. A key without a creation time
// counts as created at started, when this process started: by now, the work of earlier processes has
// ended or its events are recorded.
func orphanKeys(listed []secrets.DataKey, refs references, began, started, now time.Time,
	grace time.Duration) (orphans []string) {
	for _, key := range listed {
		created := key.Time
		if created.IsZero() {
			created = started
		}
		if !refs.dataKey(key.ID) && !created.Before(began.Add(-timeResolution)) && now.Sub(created) >= grace {
			orphans = append(orphans, key.ID)
		}
	}
	return orphans
}
