package blobs

import (
	"fmt"
	"strconv"
	"time"

	"anneal/domain"
)

// Roots are the folders below which this program stores everything, as
// ROOT/ACCOUNT/…; what lies beside them in a bucket is not its own. Those of a
// resource go on with the ID of the event that created it, so that it never
// shares a folder with another that has its name later. Earlier versions named
// folders by the resource's ID; the states that refer to such folders keep them.
const (
	DatasetRoot   = "datasets/"
	ModelRoot     = "models/"
	PreparedRoot  = "prepared/" // copies of models in other precisions
	EvaluatorRoot = "evaluators/"
	JobRoot       = "jobs/"
	ArrivalRoot   = "arrivals/"  // files that were PUT to signed URLs
	TransientRoot = "transient/" // files of requests that are being answered
)

// Roots are all of them. The last three held arrivals in earlier versions.
func Roots() []string {
	return []string{DatasetRoot, ModelRoot, PreparedRoot, EvaluatorRoot, JobRoot, ArrivalRoot, TransientRoot,
		"uploads/", "model-uploads/", "code-uploads/"}
}

// folderOf is ROOT/ACCOUNT/EVENT/.
func folderOf(root string, name domain.Name, createEvent string) string {
	return root + name.Account() + "/" + createEvent + "/"
}

// Arrivals is where the files of one upload of a resource arrive, which whoever
// holds a signed URL can write. upload numbers them.
func Arrivals(name domain.Name, createEvent string, upload int) string {
	return folderOf(ArrivalRoot, name, createEvent) + strconv.Itoa(upload) + "/"
}

// UploadFolder is where a try to store one upload of a dataset or model keeps
// its files. Each try has an ID of its own.
func UploadFolder(root string, name domain.Name, createEvent string, upload int, try string) string {
	return folderOf(root, name, createEvent) + strconv.Itoa(upload) + "-" + try + "/"
}

// DerivedFolder is where the rows of a dataset lie that is made from another.
func DerivedFolder(dataset domain.Name, createEvent string) string {
	return folderOf(DatasetRoot, dataset, createEvent) + "derived/"
}

// CopyFolder is where a try to make a copy of a model lies.
func CopyFolder(model domain.Name, createEvent, precision string, attempt int) string {
	return folderOf(PreparedRoot, model, createEvent) + precision + "-" + strconv.Itoa(attempt) + "/"
}

// CodeFolder is where a try to upload the code of an evaluator keeps its files.
func CodeFolder(evaluator domain.Name, createEvent, try string) string {
	return folderOf(EvaluatorRoot, evaluator, createEvent) + "uploads/" + try + "/"
}

// BuildFolder is where the builds of a revision of an evaluator lie: the code as
// it runs, in a folder for each build, and their logs.
func BuildFolder(evaluator domain.Name, createEvent string, revision int) string {
	return folderOf(EvaluatorRoot, evaluator, createEvent) + "builds/" + strconv.Itoa(revision) + "/"
}

// CheckpointFolder is where one checkpoint of a job lies.
func CheckpointFolder(job domain.Name, createEvent string, attempt, step int) string {
	return folderOf(JobRoot, job, createEvent) + fmt.Sprintf("checkpoints/%d-%d/", attempt, step)
}

// ResultFolder is where an attempt of a job stores the model that comes of it.
func ResultFolder(job domain.Name, createEvent string, attempt int) string {
	return folderOf(ModelRoot, job, createEvent) + "attempt-" + strconv.Itoa(attempt) + "/"
}

// MetricsFile is the key of a job's metrics: JSONL, one object a step with step,
// epoch, time, learning_rate, tokens and the figures, such as train/loss. It is
// complete up to the last checkpoint, and to the end once the job is over.
// Before the first checkpoint it is some seconds behind the training.
func MetricsFile(job domain.Name, createEvent string) string {
	return folderOf(JobRoot, job, createEvent) + "metrics.jsonl"
}

// EarlierMetricsFile is where earlier versions kept the metrics of a job.
func EarlierMetricsFile(job domain.Name, created time.Time) string {
	return fmt.Sprintf("%s%s/%s/%s/metrics-%x.jsonl", JobRoot, job.Account(), job.Collection(), job.ID(), created.UnixNano())
}

// TransientTime is how long files of a request may be needed.
const TransientTime = 24 * time.Hour

// TransientFolder is where one request of an account keeps files.
func TransientFolder(account, request string) string {
	return TransientRoot + account + "/" + request + "/"
}
