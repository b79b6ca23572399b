package blobs

import (
	"fmt"
	"time"

	"anneal/domain"
)

// JobFolder is where all that a job stores lies, but for its model.
func JobFolder(job domain.Name) string {
	return "jobs/" + job.Account() + "/" + job.Collection() + "/" + job.ID() + "/"
}

// MetricsFile is the key of a job's metrics: JSONL, one object a step with step,
// epoch, time, learning_rate, tokens and the figures, such as train/loss. It is
// complete up to the last checkpoint, and to the end once the job is over.
// Before the first checkpoint it is some seconds behind the training. made is
// the job's createTime: a job that had the name before has another file.
func MetricsFile(job domain.Name, made time.Time) string {
	return fmt.Sprintf("%smetrics-%x.jsonl", JobFolder(job), made.UnixNano())
}

// Transient is the folder of what lies there while a request is answered. What
// is older than TransientTime was left behind by a server that died.
const (
	Transient     = "transient/"
	TransientTime = 24 * time.Hour
)

// TransientFolder is where one request of an account keeps files.
func TransientFolder(account, request string) string {
	return Transient + account + "/" + request + "/"
}
