package secrets

import (
	"context"

	"anneal/domain"
)

// A Purpose is the use that code makes of the value of a secret.
type Purpose string

// Purposes of the code that reads secrets.
const (
	ScoreResponses    Purpose = "SCORE_RESPONSES"    // a job runs an evaluator's code on a node
	BuildEvaluator    Purpose = "BUILD_EVALUATOR"    // the code of a new evaluator is called once for a trial
	PreviewEvaluator  Purpose = "PREVIEW_EVALUATOR"  // a preview of an evaluator runs the evaluator's code
	TrackJob          Purpose = "TRACK_JOB"          // the metrics of a job are sent to its tracker
	CopyTrackerKey    Purpose = "COPY_TRACKER_KEY"   // the account's tracker key is copied to a fine-tuning job
	UploadMetrics     Purpose = "UPLOAD_METRICS"     // the metrics file of a job is uploaded
	TransferDataset   Purpose = "TRANSFER_DATASET"   // a dataset is imported or exported
	CheckCredentials  Purpose = "CHECK_CREDENTIALS"  // the format of object store credentials is checked
	SignWebhook       Purpose = "SIGN_WEBHOOK"       // the deliveries of a subscription are signed
	WriteSubscription Purpose = "WRITE_SUBSCRIPTION" // the files of a subscription are written
)

// Purposes lists all purposes.
var Purposes = []Purpose{ScoreResponses, BuildEvaluator, PreviewEvaluator, TrackJob, CopyTrackerKey, UploadMetrics,
	TransferDataset, CheckCredentials, SignWebhook, WriteSubscription}

// A Reader describes the code that reads a secret: its purpose, and for whom and where it runs.
type Reader struct {
	Purpose  Purpose
	Resource domain.Name // resource whose code gets the value, such as a job; "" when it does not exist yet
	Node     domain.Name // node on which the code runs; "" for the control plane
	// Key, Request and Address are API key, request ID and client address of the request that reads
	// the secret; "" when no request does.
	Key     domain.Name
	Request string
	Address string
}

// An OpenFunc decrypts a value that was sealed for the resource name. by says which code gets the
// value.
type OpenFunc func(ctx context.Context, by Reader, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)

// A Read is one read of a secret by code. Err is set when it failed.
type Read struct {
	By   Reader
	Name domain.Name // name of the resource that contains the secret
	Err  error
}

// An ObservedVault is a Vault that reports each read of a secret. Only its Open is an OpenFunc, not
// that of Vault, so that code cannot read a secret without being recorded.
type ObservedVault struct {
	*Vault
	Observe func(ctx context.Context, read Read) // called with each read; nil reports nothing
}

// Open decrypts a value as Vault.Open does, and reports the read.
func (v ObservedVault) Open(ctx context.Context, by Reader, name domain.Name, sealed domain.Sealed) (
	domain.SecretValue, error) {
	value, err := v.Vault.Open(ctx, name, sealed)
	if v.Observe != nil {
		v.Observe(ctx, Read{By: by, Name: name, Err: err})
	}
	return value, err
}
