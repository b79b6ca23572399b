package secrets

import (
	"context"

	"anneal/domain"
)

// A Purpose states what code does with the value of a secret.
type Purpose string

// Purposes of all code that reads secrets.
const (
	ScoreResponses    Purpose = "SCORE_RESPONSES"    // a job runs the code of an evaluator on a node
	BuildEvaluator    Purpose = "BUILD_EVALUATOR"    // the trial call of an evaluator's code
	PreviewEvaluator  Purpose = "PREVIEW_EVALUATOR"  // a preview runs the code of an evaluator
	TrackJob          Purpose = "TRACK_JOB"          // sends the metrics of a job to its tracker
	CopyTrackerKey    Purpose = "COPY_TRACKER_KEY"   // a fine-tuning job gets the account's key of the tracker
	UploadMetrics     Purpose = "UPLOAD_METRICS"     // uploads the metrics file of a job
	TransferDataset   Purpose = "TRANSFER_DATASET"   // imports or exports a dataset
	CheckCredentials  Purpose = "CHECK_CREDENTIALS"  // checks the form of credentials of an object store
	SignWebhook       Purpose = "SIGN_WEBHOOK"       // signs the deliveries of a subscription
	WriteSubscription Purpose = "WRITE_SUBSCRIPTION" // writes the files of a subscription
)

// Purposes lists all purposes.
var Purposes = []Purpose{ScoreResponses, BuildEvaluator, PreviewEvaluator, TrackJob, CopyTrackerKey, UploadMetrics,
	TransferDataset, CheckCredentials, SignWebhook, WriteSubscription}

// A Reader is code that reads a secret.
type Reader struct {
	Purpose  Purpose
	Resource domain.Name // resource whose code gets the value, such as a job; "" if there is none yet
	Node     domain.Name // node that gets the value; "" for the control plane
	// Key, Request and Address are those of the request that reads the secret; "" for other code.
	Key     domain.Name
	Request string
	Address string
}

// An OpenFunc decrypts a value that was sealed for the named resource. by is the code that gets the
// value.
type OpenFunc func(ctx context.Context, by Reader, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)

// A Read is a value that code got, or an attempt that failed with Err.
type Read struct {
	By   Reader
	Name domain.Name // resource for which the value was sealed
	Err  error
}

// An ObservedVault is a Vault that reports each read by code. Its Open is an OpenFunc; that of a Vault
// is not, so that no code reads a secret without being recorded.
type ObservedVault struct {
	*Vault
	Observe func(ctx context.Context, read Read) // nil reports nothing
}

// Open decrypts a value like Vault.Open.
func (v ObservedVault) Open(ctx context.Context, by Reader, name domain.Name, sealed domain.Sealed) (
	domain.SecretValue, error) {
	value, err := v.Vault.Open(ctx, name, sealed)
	if v.Observe != nil {
		v.Observe(ctx, Read{By: by, Name: name, Err: err})
	}
	return value, err
}
