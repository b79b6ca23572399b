package openapi

// APIVersion is the version of the API that the document describes, not the version of the program.
const APIVersion = "5.10.0"

// tags has the groups of operations in the order of the document.
var tags = []struct{ name, description string }{
	{"accounts", "Tenants, which own all other resources. The operator creates and suspends them."},
	{"apiKeys", "Credentials of clients. Only the response to the creation of a key contains the key itself."},
	{"secrets", "Credentials of third-party services for jobs and evaluators. Their values cannot be read back."},
	{"datasets", "Rows for training and evaluation."},
	{"evaluators", "Code that scores completions."},
	{"supervisedFineTuningJobs", "Supervised fine-tuning: training on example completions."},
	{"dpoJobs", "Preference training (DPO, ORPO): training on pairs of preferred and rejected completions."},
	{"reinforcementFineTuningJobs", "Training on completions that an evaluator scores."},
	{"rlorTrainerJobs", "Training on completions that were scored elsewhere."},
	{"trainingSessions", "Connections of clients to the training service of a trainer job with serviceMode."},
	{"trainingRuns", "Adapters that clients train through the training service, with their checkpoints."},
	{"models", "Base models and adapters that were uploaded, or trained by jobs."},
	{"deploymentShapes", "Versioned presets of the hardware and the serving settings of deployments."},
	{"deployments", "Models that are served by replicas."},
	{"deployedModels", "LoRA addons that are loaded into a deployment of their base model."},
	{"files", "Datasets, and inputs and outputs of batches, as files of the OpenAI API. Field names are in snake_case."},
	{"fineTuning", "Training jobs as fine-tuning jobs of the OpenAI API. Field names are in snake_case."},
	{"batches", "Batches of the OpenAI API: files of inference requests that are sent at low priority. Field names " +
		"are in snake_case."},
	{"inference", "Completions, chat completions, responses, embeddings and transcriptions. Field names are in " +
		"snake_case."},
	{"events", "The log of all state changes, as CloudEvents."},
	{"subscriptions", "Deliveries of events to webhooks, and to files in object stores."},
	{"quotas", "Limits of an account, which the operator sets."},
	{"usage", "Usage of models and accelerators by hour."},
	{"nodes", "Worker nodes. They belong to the operator's account, system."},
	{"backups", "Backups of the installation, which only the operator can make."},
	{"rebuilds", "Rebuilds of a control plane's state from the log, which only the operator can start."},
	{"system", "Health, metrics and this document."},
}

const introduction = `Anneal trains, deploys and serves models. Each state change is recorded as an event, and
clients can list and stream the events.

**Names.** The name of a resource is accounts/ACCOUNT/COLLECTION/ID. Its path is /v1/ and its name.

**JSON.** Field names in responses are in lowerCamelCase; requests may use snake_case as well. In
requests, null means absent, fields that only the server sets are ignored, and unknown fields are
rejected. 64-bit integers in responses are decimal strings. Times are in RFC 3339 format, in UTC.
readMask selects the fields of a response.

**Errors** list all invalid fields, each with the rule and what to do.

**Authentication.** Send the header Authorization: Bearer API_KEY.

**Idempotency.** A POST or PATCH with an Idempotency-Key is processed once: for 24 hours, the same
request with the same key gets the stored response, with the header Idempotent-Replayed. Another
request with that key is rejected with 409. After a 429, or a status of 500 or above, send the same
request again. Streams do not accept the header. When an account has the maximum number of stored
responses, a new key is rejected with 429, TOO_MANY_IDEMPOTENCY_KEYS and Retry-After. For one day
after the server has lost stored responses to a damaged disk, an unknown key is rejected with 503
and IDEMPOTENCY_RECORDS_LOST, since the request may have been processed before: find out whether it
was, and send it without a key or after that day.

**Positions.** A response of a management operation has anneal-position, the position of the event log
that it reflects. A request with anneal-at-least and a position waits until the server has reached
that position, at most 5 seconds, then gets 503 and Retry-After. So a client that sends the
anneal-position of its last response reads its own writes from every server of an installation. A
server that may have missed events for more than 10 seconds, because it cannot reach the log, sets
anneal-stale to the number of seconds.

**Rate limits.** For an account with a limit of requests per minute, responses have the headers
X-RateLimit-Limit-Requests, X-RateLimit-Remaining-Requests and X-RateLimit-Reset-Requests (a
duration, such as 1m30s). A 429 names the quota and has Retry-After, in seconds. An upload that
exceeds the quota storage-bytes is rejected with 429 and QUOTA_EXCEEDED; a PUT to a signed URL, with
507. Files uploaded to signed URLs that are not validated within 7 days are deleted.

**Request IDs.** Each response has X-Request-Id: the client's, if it is an ID of at most 128
characters, or a generated one.

**Traces.** A request may have the headers traceparent and tracestate (W3C Trace Context). A valid
traceparent is returned, is in the events that the request and the reactions to it record, and is
sent to model servers. An invalid one is ignored.`
