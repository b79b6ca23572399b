package blobs

import "anneal/domain"

// JobFolder is where all that a job stores lies, but for its model.
func JobFolder(job domain.Name) string {
	return "jobs/" + job.Account() + "/" + job.Collection() + "/" + job.ID() + "/"
}

// MetricsFile is the key of a job's metrics: JSONL, one object a step with step,
// epoch, time, learning_rate, tokens and the figures, such as train/loss. It is
// complete up to the last checkpoint, and to the end once the job is over.
// Before the first checkpoint it is some seconds behind the training.
func MetricsFile(job domain.Name) string { return JobFolder(job) + "metrics.jsonl" }
