package rest

import (
	"anneal/blobs"
	"anneal/domain"
)

// trainerLog responds with a signed URL of the log of a job, or an error if it has no log. event is
// the ID of the event that created the job; attempts is the number of its newest attempt.
func trainerLog(c *call, job domain.Name, event string, attempts int) (any, error) {
	url, err := signedLog(c, job, event, attempts)
	if err != nil {
		return nil, err
	}
	if url == "" {
		f := domain.Errorf(domain.FailedPrecondition,
			"%s has no log yet: it is available some seconds after the job's first attempt starts; state and status show "+
				"what the job waits for", job)
		f.Reason = "NO_LOGS"
		return nil, f
	}
	return signedURL{url}, nil
}

// signedLog returns a signed URL of the newest log that an attempt of the job has written; "" if
// there is none. event is the ID of the event that created the job; attempts is the number of its
// newest attempt.
func signedLog(c *call, job domain.Name, event string, attempts int) (string, error) {
	key, err := c.Uploads.Blobs.NewestOfAttempts(c.Ctx, blobs.LogRoot(job, event), attempts)
	if err != nil || key == "" {
		return "", err
	}
	return c.Uploads.Blobs.SignGet(c.Ctx, key, c.Limits.SignedURL)
}
