package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// BatchBody is the body of a request for a batch.
type BatchBody struct {
	InputFileID      string            `json:"input_file_id"`
	Endpoint         string            `json:"endpoint"`
	CompletionWindow string            `json:"completion_window"`
	Metadata         map[string]string `json:"metadata,omitempty"`
}

// Batch is a batch of the OpenAI API.
type Batch struct {
	ID               string             `json:"id"`
	Object           string             `json:"object"`
	Endpoint         string             `json:"endpoint"`
	Model            *string            `json:"model"`
	Errors           *BatchErrors       `json:"errors"`
	InputFileID      string             `json:"input_file_id"`
	CompletionWindow string             `json:"completion_window"`
	Status           string             `json:"status"`
	OutputFileID     *string            `json:"output_file_id"`
	ErrorFileID      *string            `json:"error_file_id"`
	CreatedAt        int64              `json:"created_at"` // Unix seconds, like all times of a batch
	InProgressAt     *int64             `json:"in_progress_at"`
	ExpiresAt        *int64             `json:"expires_at"`
	FinalizingAt     *int64             `json:"finalizing_at"`
	CompletedAt      *int64             `json:"completed_at"`
	FailedAt         *int64             `json:"failed_at"`
	ExpiredAt        *int64             `json:"expired_at"`
	CancellingAt     *int64             `json:"cancelling_at"`
	CancelledAt      *int64             `json:"cancelled_at"`
	RequestCounts    BatchRequestCounts `json:"request_counts"`
	Metadata         map[string]string  `json:"metadata"`
}

// BatchRequestCounts are the numbers of requests of a batch.
type BatchRequestCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// BatchErrors are the reasons why a batch has failed.
type BatchErrors struct {
	Object string       `json:"object"`
	Data   []BatchError `json:"data"`
}

// BatchError is one reason why a batch has failed.
type BatchError struct {
	Code    string  `json:"code"`
	Message string  `json:"message"`
	Param   *string `json:"param"`
	Line    *int    `json:"line"`
}

// BatchList is a page of batches.
type BatchList struct {
	Object  string  `json:"object"`
	Data    []Batch `json:"data"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
	HasMore bool    `json:"has_more"`
}

var batchStates = []string{domain.BatchValidating, domain.BatchFailedState, domain.BatchInProgress,
	domain.BatchFinalizingState, domain.BatchCompletedState, domain.BatchExpiredState, domain.BatchCancellingState,
	domain.BatchCancelledState}

// batchRules constrain the values of fields of batches.
var batchRules = map[string]wire.Rule{
	"BatchBody.endpoint":          wire.OneOf(domain.BatchEndpoints...),
	"BatchBody.completion_window": wire.OneOf(domain.BatchWindow),
	"BatchBody.metadata":          {},
	"Batch.object":                wire.OneOf(batchObject),
	"Batch.endpoint":              wire.OneOf(domain.BatchEndpoints...),
	"Batch.completion_window":     wire.OneOf(domain.BatchWindow),
	"Batch.status":                wire.OneOf(batchStates...),
	"Batch.metadata":              {},
	"BatchErrors.object":          wire.OneOf(listObject),
	"BatchList.object":            wire.OneOf(listObject),
}

// batchTexts describe the fields of batches.
var batchTexts = map[string]string{
	"BatchBody.input_file_id": "ID of a file with the purpose batch. Each line is a request: custom_id, method POST, " +
		"url (the endpoint) and body. All bodies name the same model.",
	"Batch.input_file_id":         "ID of the file with the requests.",
	"BatchBody.endpoint":          "Path to which the requests are sent.",
	"Batch.endpoint":              "Path to which the requests are sent.",
	"BatchBody.completion_window": "Always 24h. Requests that are not complete after this time are not sent any more.",
	"Batch.completion_window":     "Always 24h.",
	"BatchBody.metadata": "Values for the client's own use: at most 16, with keys of at most 64 characters and " +
		"values of at most 512 characters.",
	"Batch.id":     "ID of the batch.",
	"Batch.object": objectText,
	"Batch.model":  "Model of all requests; null until they are validated.",
	"Batch.errors": "Why the batch has failed; null unless it has.",
	"Batch.status": "Lifecycle state: validating, in_progress, finalizing and completed; or failed, cancelling and " +
		"cancelled, or expired.",
	"Batch.output_file_id":         "ID of the file with the results of status 200; null if there are none yet.",
	"Batch.error_file_id":          "ID of the file with the other results; null if there are none yet.",
	"Batch.created_at":             createdText,
	"Batch.in_progress_at":         "Time at which the requests had been validated, in Unix seconds; null before.",
	"Batch.expires_at":             "End of the completion window, in Unix seconds.",
	"Batch.finalizing_at":          "Time at which the last request ended, in Unix seconds; null before.",
	"Batch.completed_at":           "Time at which the batch was completed, in Unix seconds; null if it was not.",
	"Batch.failed_at":              "Time at which the batch failed, in Unix seconds; null if it has not.",
	"Batch.expired_at":             "Time at which the batch ended after its window, in Unix seconds; null if it did not.",
	"Batch.cancelling_at":          "Time at which the cancellation was requested, in Unix seconds; null if it was not.",
	"Batch.cancelled_at":           "Time at which the batch was cancelled, in Unix seconds; null if it was not.",
	"Batch.request_counts":         "Numbers of requests. They may be some seconds old while the batch runs.",
	"Batch.metadata":               "The request's metadata.",
	"BatchRequestCounts.total":     "Requests of the file; 0 until they are validated.",
	"BatchRequestCounts.completed": "Requests with a response of status 200.",
	"BatchRequestCounts.failed":    "Requests with a response of another status.",
	"BatchErrors.object":           objectText,
	"BatchErrors.data":             "The first 100 errors of the file, and the number of further ones.",
	"BatchError.code":              "Kind of the error.",
	"BatchError.message":           "What is wrong, and how to correct it.",
	"BatchError.param":             "Invalid field of the line; null if the error is not about one field.",
	"BatchError.line":              "Line of the file, from 1; null if the error is not about one line.",
	"BatchList.object":             objectText,
	"BatchList.data":               "The batches of this page.",
}

// batchTypeTexts describe the types of batches.
var batchTypeTexts = map[string]string{
	"BatchBody":          "The settings of a batch.",
	"Batch":              "A batch of requests to a model.",
	"BatchRequestCounts": "Numbers of requests of a batch.",
	"BatchErrors":        "The reasons why a batch has failed.",
	"BatchError":         "A reason why a batch has failed.",
	"BatchList":          "A page of batches.",
}
