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
// to it, and Grace is longer than the time until this event: for an upload that is being stored,
// for results (their signed URLs are valid for 12 h) and for the files of a request
// (blobs.TransientTime). The age of a file is that of the newest file in its directory, so that the
// first files of a long upload are not deleted while others are added.
const Grace = blobs.TransientTime

// UploadTime is how long uploaded files wait for the validation of their upload. Older files are
// deleted, although their resource still expects an upload.
const UploadTime = domain.UploadTime

// KeyGrace is how long unreferenced data keys are kept. It is short because a value is sealed
// moments before its event is appended.
const KeyGrace = 10 * time.Minute

// timeResolution is the resolution of the times of files, which is a second in object stores.
const timeResolution = time.Second

// orphanBlobs returns the keys of the files in listed that must be deleted: files older than grace
// to which no resource refers, files of uploads that were not validated within UploadTime, and logs
// and rollouts of earlier attempts (see blobs.Superseded) that are older than blobs.SupersededTime.
// The caller must have listed the bucket before it took the view for refs. Files older than began,
// the time of the log's first event, belong to another log and are not returned.
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

// orphanKeys returns the IDs of the data keys in listed that must be erased: those to which no
// resource refers, that are older than grace, and not older than began, the time of the log's first
// event. A key without a creation time counts as created at started, when this process started,
// because the requests of earlier processes have ended since.
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
