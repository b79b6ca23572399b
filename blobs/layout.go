package blobs

import (
	"fmt"
	"strconv"
	"time"

	"anneal/domain"
)

// Prefixes below which anneal stores files, as ROOT/ACCOUNT/…. It reads and changes no other keys
// of the bucket, except those in owner.go. The prefix of a resource continues with the ID of the
// event that created the resource, so that a later resource of the same name has another prefix.
// Earlier versions used the resource's ID; the states of their resources keep those prefixes.
const (
	DatasetRoot   = "datasets/"
	ModelRoot     = "models/"
	PreparedRoot  = "prepared/" // copies of models in other precisions
	EvaluatorRoot = "evaluators/"
	JobRoot       = "jobs/"
	BatchRoot     = "batches/"
	DeliveryRoot  = "subscriptions/"
	StagingRoot   = "arrivals/"  // files that clients upload to signed URLs
	TransientRoot = "transient/" // files of requests that are being processed
)

// Roots returns all prefixes below which anneal stores files. The last three were staging prefixes
// of earlier versions.
func Roots() []string {
	return []string{DatasetRoot, ModelRoot, PreparedRoot, EvaluatorRoot, JobRoot, BatchRoot, DeliveryRoot,
		StagingRoot, TransientRoot,
		"uploads/", "model-uploads/", "code-uploads/"}
}

// resourcePrefix returns the prefix ROOT/ACCOUNT/EVENT/ of the files of a resource, where EVENT is
// the ID of the event that created the resource.
func resourcePrefix(root string, name domain.Name, createEvent string) string {
	return root + name.Account() + "/" + createEvent + "/"
}

// StagingPrefix returns the prefix of the files of one upload of a resource. Any client with a
// signed URL can write these files. upload is the number of the upload.
func StagingPrefix(name domain.Name, createEvent string, upload int) string {
	return resourcePrefix(StagingRoot, name, createEvent) + strconv.Itoa(upload) + "/"
}

// UploadPrefix returns the prefix below which one attempt to store a validated upload of a dataset
// or model writes its files. attempt is the unique ID of the attempt.
func UploadPrefix(root string, name domain.Name, createEvent string, upload int, attempt string) string {
	return resourcePrefix(root, name, createEvent) + strconv.Itoa(upload) + "-" + attempt + "/"
}

// DerivedPrefix returns the prefix of the files of a derived dataset.
func DerivedPrefix(dataset domain.Name, createEvent string) string {
	return resourcePrefix(DatasetRoot, dataset, createEvent) + "derived/"
}

// CopyPrefix returns the prefix below which one attempt to prepare a copy of a model in another
// precision writes its files.
func CopyPrefix(model domain.Name, createEvent, precision string, attempt int) string {
	return resourcePrefix(PreparedRoot, model, createEvent) + precision + "-" + strconv.Itoa(attempt) + "/"
}

// CodePrefix returns the prefix below which one attempt to store the code of an evaluator writes
// its files. attempt is the unique ID of the attempt.
func CodePrefix(evaluator domain.Name, createEvent, attempt string) string {
	return resourcePrefix(EvaluatorRoot, evaluator, createEvent) + "uploads/" + attempt + "/"
}

// BuildPrefix returns the prefix of the builds of an evaluator's revision: build logs, and the
// built code, below a prefix for each build.
func BuildPrefix(evaluator domain.Name, createEvent string, revision int) string {
	return resourcePrefix(EvaluatorRoot, evaluator, createEvent) + "builds/" + strconv.Itoa(revision) + "/"
}

// CheckpointPrefix returns the prefix of one checkpoint of a job.
func CheckpointPrefix(job domain.Name, createEvent string, attempt, step int) string {
	return resourcePrefix(JobRoot, job, createEvent) + fmt.Sprintf("checkpoints/%d-%d/", attempt, step)
}

// ResultPrefix returns the prefix of the model that an attempt of a job uploads as its result.
func ResultPrefix(job domain.Name, createEvent string, attempt int) string {
	return resourcePrefix(ModelRoot, job, createEvent) + "attempt-" + strconv.Itoa(attempt) + "/"
}

// InlinePrefix returns the prefix of a small model that the report of an attempt contains as its
// result. It has one level less than ResultPrefix, because creating a directory takes longer than
// creating a file.
func InlinePrefix(job domain.Name, createEvent string, attempt int) string {
	return ModelRoot + job.Account() + "/" + createEvent + inlineAttempt + strconv.Itoa(attempt) + "/"
}

// inlineAttempt precedes the number of the attempt in the result of InlinePrefix.
const inlineAttempt = "-attempt-"

// PromotedPrefix returns the prefix of a copy of the model in a checkpoint of a job. copied is the
// unique ID of the copy.
func PromotedPrefix(job domain.Name, createEvent, copied string) string {
	return resourcePrefix(ModelRoot, job, createEvent) + "promoted-" + copied + "/"
}

// MetricsFile returns the key of a job's metrics: JSONL with one object per step, which has step,
// epoch, time, learning_rate, tokens and metrics such as train/loss. While the job runs, the file
// has at least the steps up to the last checkpoint; before the first checkpoint it is some seconds
// behind the training. The file is complete once the job has ended.
func MetricsFile(job domain.Name, createEvent string) string {
	return resourcePrefix(JobRoot, job, createEvent) + metricsFile
}

const metricsFile = "metrics.jsonl"

// JournalPrefix returns the prefix of the operations of training runs and sampling sessions, and of
// their results. createEvent is the ID of the event that created the trainer job. See package
// blobs/operations.
func JournalPrefix(account, createEvent string) string {
	return JobRoot + account + "/" + createEvent + "/journal/"
}

// TrainingCheckpointPrefix returns the prefix of one checkpoint of a training run. createEvent is
// the ID of the event that created the trainer job, and stored the unique ID of the checkpoint's
// files.
func TrainingCheckpointPrefix(account, createEvent, run, stored string) string {
	return JobRoot + account + "/" + createEvent + "/training/" + run + "/" + stored + "/"
}

// RolloutsRoot returns the prefix of the rollouts of all attempts of a job. See RolloutsPrefix.
func RolloutsRoot(job domain.Name, createEvent string) string {
	return resourcePrefix(JobRoot, job, createEvent) + rolloutsDir + "/"
}

// RolloutsPrefix returns the prefix below which an attempt of a job stores its file with rollouts.
// The file includes the rollouts of earlier attempts up to the checkpoint from which the attempt
// resumed. See Store.NewestOfAttempts.
func RolloutsPrefix(job domain.Name, createEvent string, attempt int) string {
	return RolloutsRoot(job, createEvent) + strconv.Itoa(attempt) + "/"
}

// TrackerFile returns the key of the file that records what a job's experiment tracker has
// received.
func TrackerFile(job domain.Name, createEvent string) string {
	return resourcePrefix(JobRoot, job, createEvent) + "tracker.json"
}

// LogRoot returns the prefix below which earlier versions stored the logs of a job, for
// NewestOfAttempts. See TrainerLog.
func LogRoot(job domain.Name, createEvent string) string {
	return resourcePrefix(JobRoot, job, createEvent) + logsDir + "/"
}

// TrainerLog returns the key of the log that an attempt of a job stores: the log of the earlier
// attempts, followed by the output of the attempt's trainer and its progress. See
// Store.NewestOfAttempts.
func TrainerLog(job domain.Name, createEvent string, attempt int) string {
	return resourcePrefix(JobRoot, job, createEvent) + trainerLog + strconv.Itoa(attempt) + logSuffix
}

// EarlierMetricsFile returns the key under which earlier versions of anneal stored a job's metrics.
func EarlierMetricsFile(job domain.Name, created time.Time) string {
	return fmt.Sprintf("%s%s/%s/%s/metrics-%x.jsonl", JobRoot, job.Account(), job.Collection(), job.ID(),
		created.UnixNano())
}

// BatchPrefix returns the prefix of the partial results that are stored while a batch runs.
func BatchPrefix(batch domain.Name, createEvent string) string {
	return resourcePrefix(BatchRoot, batch, createEvent) + "results/"
}

// BatchOutputPrefix returns the prefix of a result file of a batch. The argument which is one of
// domain.BatchResultFiles.
func BatchOutputPrefix(batch domain.Name, createEvent, which string) string {
	return resourcePrefix(BatchRoot, batch, createEvent) + which + "/"
}

// TransientTime is the maximum time for which the files below TransientRoot are stored.
const TransientTime = 24 * time.Hour

// TransientPrefix returns the prefix of the files of one request of an account.
func TransientPrefix(account, request string) string {
	return TransientRoot + account + "/" + request + "/"
}

// DeliveryFile returns the key of the file that records what the target of a subscription has
// received. See package blobs/delivery.
func DeliveryFile(subscription domain.Name, createEvent string) string {
	return resourcePrefix(DeliveryRoot, subscription, createEvent) + "delivery.json"
}
