package coordinator

import (
	"context"
	"fmt"

	"anneal/blobs"
	"anneal/workers/protocol"
)

// signLog returns a signed URL for uploading the log of a job's current attempt. The URL depends on
// the attempt, so an agent whose attempt is over cannot overwrite the log of a later one.
func signLog(ctx context.Context, store *blobs.Store, j job) (string, error) {
	return store.SignPut(ctx, blobs.TrainerLog(j.Name, j.Event, j.Life.Attempt), protocol.MaxLog, uploadWithin)
}

// signLogs returns two signed URLs for the current attempt of a job: put for uploading its log, and
// earlier for reading the log of the newest earlier attempt that has stored one; "" when there is
// none. An error is never a *domain.Error, which would fail the job, so the caller tries again at
// the next heartbeat.
func signLogs(ctx context.Context, store *blobs.Store, j job) (put, earlier string, err error) {
	if put, err = signLog(ctx, store, j); err != nil {
		return "", "", fmt.Errorf("sign the URL for the job's log: %v", err)
	}
	if j.Life.Attempt == 1 {
		return put, "", nil
	}
	key, err := store.NewestOfAttempts(ctx, blobs.LogRoot(j.Name, j.Event), j.Life.Attempt-1)
	if err == nil && key != "" {
		earlier, err = store.SignGet(ctx, key, uploadWithin)
	}
	if err != nil {
		return "", "", fmt.Errorf("find the log of the job's earlier attempts: %v", err)
	}
	return put, earlier, nil
}
