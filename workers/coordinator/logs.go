package coordinator

import (
	"context"
	"fmt"

	"anneal/blobs"
	"anneal/workers/protocol"
)

// signLog returns a signed URL with which the current attempt of a job stores its log. Only the agent
// of the attempt gets it, so an agent whose attempt is over cannot change the log of a later attempt.
func signLog(ctx context.Context, store *blobs.Store, j job) (string, error) {
	return store.SignPut(ctx, blobs.TrainerLog(j.Name, j.Event, j.Life.Attempt), protocol.MaxLog, uploadWithin)
}

// signLogs returns two signed URLs for the current attempt of a job: put stores its log, and
// earlier reads the log of the newest earlier attempt that has stored one. earlier is "" if there
// is none. An error is never a *domain.Error, which would fail the job: the next heartbeat retries.
func signLogs(ctx context.Context, store *blobs.Store, j job) (put, earlier string, err error) {
	if put, err = signLog(ctx, store, j); err != nil {
		return "", "", fmt.Errorf("sign the URL of the log: %v", err)
	}
	if j.Life.Attempt == 1 {
		return put, "", nil
	}
	key, err := store.NewestOfAttempts(ctx, blobs.LogRoot(j.Name, j.Event), j.Life.Attempt-1)
	if err == nil && key != "" {
		earlier, err = store.SignGet(ctx, key, uploadWithin)
	}
	if err != nil {
		return "", "", fmt.Errorf("find the log of earlier attempts: %v", err)
	}
	return put, earlier, nil
}
