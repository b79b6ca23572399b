package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// BatchBody is the body of a request that creates a batch.
type BatchBody struct {
	InputFileID      string            `json:"input_file_id"`
	Endpoint         string            `json:"endpoint"`
	CompletionWindow string            `json:"completion_window"`
	Metadata         map[string]string `json:"metadata,omitempty"`
}

// Batch is a batch in the format of the OpenAI API.
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
	CreatedAt        int64              `json:"created_at"` // in Unix seconds, like all times of a batch
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

// BatchRequestCounts counts the requests of a batch.
type BatchRequestCounts struct {
	Total     int `json:"total"`
	Completed int `json:"completed"`
	Failed    int `json:"failed"`
}

// BatchErrors lists the reasons why a batch has failed.
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

// batchRules constrains the values of fields of batches.
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

// batchTexts describes the fields of batches in the API reference.
var batchTexts = map[string]string{
	"BatchBody.input_file_id": "ID of a file with the purpose batch. Each line is a request with custom_id, " +
		"method (POST), url (the endpoint) and body. All bodies must name the same model.",
	"Batch.input_file_id":         "ID of the file with the requests of the batch.",
	"BatchBody.endpoint":          "Path of the operation to which the requests are sent, such as /v1/chat/completions.",
	"Batch.endpoint":              "Path of the operation to which the requests are sent.",
	"BatchBody.completion_window": "Always 24h: a batch that has not ended by then expires and sends no more requests.",
	"Batch.completion_window":     "Always 24h: a batch that has not ended by then expires and sends no more requests.",
	"BatchBody.metadata": "Key-value pairs of the client: at most 16, with keys of at most 64 and values of at most " +
		"512 characters.",
	"Batch.id":     "ID of the batch.",
	"Batch.object": objectText,
	"Batch.model":  "Model that all requests name; null until the requests are validated.",
	"Batch.errors": "Why the batch has failed; null unless its status is failed.",
	"Batch.status": "Lifecycle state: validating, in_progress, finalizing, completed, failed, " +
		"cancelling, cancelled or expired.",
	"Batch.output_file_id": "ID of the file with the responses of status 200; null if there are none yet.",
	"Batch.error_file_id":  "ID of the file with the responses of other statuses; null if there are none yet.",
	"Batch.created_at":     createdText,
	"Batch.in_progress_at": "Time at which the requests were validated and sending began, in Unix seconds; " +
		"null until then.",
	"Batch.expires_at":    "Time at which the completion window ends, in Unix seconds.",
	"Batch.finalizing_at": "Time at which the last request ended, in Unix seconds; null until then.",
	"Batch.completed_at":  "Time at which the batch was completed, in Unix seconds; null if it was not.",
	"Batch.failed_at":     "Time at which the batch failed, in Unix seconds; null unless it has failed.",
	"Batch.expired_at": "Time at which the batch expired because its completion window had ended, in Unix " +
		"seconds; null unless it has expired.",
	"Batch.cancelling_at": "Time at which the cancellation was requested, in Unix seconds; null if it was not.",
	"Batch.cancelled_at":  "Time at which the batch was cancelled, in Unix seconds; null if it was not.",
	"Batch.request_counts": "Numbers of requests by result. They may be some seconds old while the batch is " +
		"in progress.",
	"Batch.metadata":               "Field metadata of the request.",
	"BatchRequestCounts.total":     "Number of requests in the file; 0 until they are validated.",
	"BatchRequestCounts.completed": "Number of requests with a response of status 200.",
	"BatchRequestCounts.failed":    "Number of requests with a response of another status.",
	"BatchErrors.object":           objectText,
	"BatchErrors.data": "The first 100 errors in the file. If there are more, the last entry has their " +
		"number.",
	"BatchError.code":    "Machine-readable kind of the error.",
	"BatchError.message": "Message that says what is wrong in the file, and how to correct it.",
	"BatchError.param":   "Field of the line that is invalid; null if the error is not about a single field.",
	"BatchError.line": "Number of the line in the file, from 1; null if the error is not about a single " +
		"line.",
	"BatchList.object": objectText,
	"BatchList.data":   "The batches of this page.",
}

// batchTypeTexts describes the types of batches in the API reference.
var batchTypeTexts = map[string]string{
	"BatchBody":          "Request for a batch: file, endpoint and settings.",
	"Batch":              "A batch of inference requests to one model.",
	"BatchRequestCounts": "Numbers of requests of a batch by result.",
	"BatchErrors":        "Reasons why a batch has failed.",
	"BatchError":         "Reason why a batch has failed.",
	"BatchList":          "A page of a list of batches.",
}
