package api

import (
	"anneal/api/wire"
	"anneal/domain"
)

// fieldRules say what values a field may have, by field or by type and field.
// Lists of values are those that the domain validates with; the tests hold all
// that is asked and answered against them.
var fieldRules = map[string]wire.Rule{
	"Status.code":                 wire.OneOf(statusCodes()...),
	"name":                        {MaxLength: 512, Both: true},
	"displayName":                 {MaxLength: domain.MaxDisplayName},
	"Deployment.displayName":      {MaxLength: domain.MaxShortName},
	"DeploymentShape.displayName": {MaxLength: domain.MaxShortName},
	"Account.displayName":         {MaxLength: domain.MaxShortName},
	"description":                 {MaxLength: domain.MaxDescription},
	"DeploymentShape.description": {MaxLength: domain.MaxDescription - 1},
	"Criterion.description":       {MaxLength: 4096},
	"Criterion.name":              {MaxLength: 256},
	"email":                       {MaxLength: domain.MaxEmail},

	"Account.accountType":     wire.OneOf("ACCOUNT_TYPE_UNSPECIFIED", domain.Enterprise),
	"Account.state":           wire.OneOf("STATE_UNSPECIFIED", "CREATING", domain.AccountReady, "UPDATING", "DELETING"),
	"Account.suspendState":    wire.OneOf(append([]string{domain.Unsuspended}, domain.SuspendStates...)...),
	"Suspension.suspendState": wire.OneOf(domain.SuspendStates...),
	"Suspension.reason":       {MaxLength: domain.MaxDescription},
	"APIKey.role":             wire.OneOf(domain.Roles...),

	"keyName":      {Pattern: `^[A-Za-z_][A-Za-z0-9_-]{0,127}$`},
	"Secret.value": {MaxLength: MaxSecret, Both: true},

	"Dataset.state":  wire.OneOf("STATE_UNSPECIFIED", domain.DatasetUploading, domain.DatasetReady),
	"format":         wire.OneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),
	"rowShape":       wire.OneOf(domain.ShapeChat, domain.ShapePreference, domain.ShapeCompletion, domain.ShapePrompt, domain.ShapeSamples),
	"originalFormat": wire.OneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),

	"Evaluator.state":        wire.OneOf("STATE_UNSPECIFIED", domain.EvaluatorActive, domain.EvaluatorBuilding, domain.EvaluatorFailed),
	"Evaluator.criteria":     {MaxItems: domain.MaxCriteria},
	"Criterion.type":         wire.OneOf("TYPE_UNSPECIFIED", "CODE_SNIPPETS"),
	"EvaluatorSource.type":   wire.OneOf("TYPE_UNSPECIFIED", "TYPE_UPLOAD", "TYPE_CODE_HOST", "TYPE_TEMPORARY"),
	"Evaluator.revision":     wire.AtLeast(1),
	"entryPoint":             {MaxLength: 1024},
	"commitHash":             {MaxLength: 1024},
	"language":               {MaxLength: 64},
	"entryFunc":              {MaxLength: 256},
	"codeHostRepositoryName": {MaxLength: 1024},

	"Model.state": wire.OneOf("STATE_UNSPECIFIED", domain.ModelUploading, domain.ModelReady),
	"kind":        wire.OneOf(domain.ModelKinds...),

	"SpeechSettings.format": wire.OneOf(domain.SpeechFormats...),
	"speechFormat":          wire.OneOf(domain.SpeechFormats...),

	"Model.precision": wire.OneOf(domain.StoredPrecisions...),

	"SupervisedJob.state":       wire.OneOf(jobStates...),
	"DPOJob.state":              wire.OneOf(jobStates...),
	"ReinforcementJob.state":    wire.OneOf(jobStates...),
	"TrainerJob.state":          wire.OneOf(jobStates...),
	"percent":                   wire.Between(0, 100),
	"region":                    wire.OneOf(domain.Regions...),
	"regions":                   wire.OneOf(domain.Regions...),
	"multiRegion":               wire.OneOf(domain.MultiRegions...),
	"epochs":                    wire.Between(0, domain.MaxEpochs),
	"learningRate":              wire.Between(0, 1),
	"optimizerWeightDecay":      wire.Between(0, 1),
	"loraRank":                  wire.Between(0, domain.MaxLoraRank),
	"batchSize":                 wire.AtLeast(0),
	"batchSizeSamples":          wire.AtLeast(0),
	"gradientAccumulationSteps": wire.AtLeast(0),
	"learningRateWarmupSteps":   wire.AtLeast(0),
	"maxContextLength":          wire.AtLeast(0),
	"jinjaTemplate":             {MaxLength: 64 << 10},
	"chunkSize":                 wire.Between(0, domain.MaxChunkSize),
	"nodeCount":                 wire.Between(0, domain.MaxJobNodes),
	"maxConcurrentRollouts":     wire.Between(0, domain.MaxConcurrent),
	"maxConcurrentEvaluations":  wire.Between(0, domain.MaxConcurrent),
	"maxInferenceReplicaCount":  wire.Between(0, 1000),
	"outputMetrics":             {MaxLength: 4096},
	"mcpServer":                 {MaxLength: 2048},
	"purpose":                   wire.OneOf("PURPOSE_UNSPECIFIED", "PURPOSE_PILOT"),
	"rewardWeights":             {MaxItems: domain.MaxRewards},
	"method":                    wire.OneOf(domain.LossUnspecified, domain.LossGRPO, domain.LossDAPO, domain.LossGSPO, domain.LossDPO, domain.LossORPO),
	"klBeta":                    wire.Between(0, 10),
	"beta":                      wire.Between(0, 100),
	"lambda":                    wire.Between(0, 100),
	"refCacheConcurrency":       wire.Between(0, 1024),
	"refCacheBatchSize":         wire.Between(0, 1<<20),

	"Deployment.state": wire.OneOf("STATE_UNSPECIFIED", domain.DeploymentCreatingState, domain.DeploymentReadyState, domain.DeploymentUpdatingState,
		domain.DeploymentFailedState, domain.DeploymentDeletingState, domain.DeploymentDeletedState),
	"acceleratorType":        wire.OneOf(domain.ShapeAcceleratorTypes...),
	"precision":              wire.OneOf(domain.Precisions...),
	"directRouteType":        wire.OneOf("DIRECT_ROUTE_TYPE_UNSPECIFIED", "INTERNET", "CLOUD_A_PRIVATE_SERVICE_CONNECT", "CLOUD_B_PRIVATELINK"),
	"hotLoadBucketType":      wire.OneOf("BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER", "OBJECT_STORE_API", "CLOUD_C", "SERVICE_HOSTED"),
	"presetType":             wire.OneOf(domain.PresetTypes...),
	"capabilities":           wire.OneOf("CAPABILITY_UNSPECIFIED", domain.MultiLora),
	"minReplicaCount":        wire.Between(0, 1000),
	"maxReplicaCount":        wire.Between(0, 1000),
	"Scaling.replicaCount":   wire.Between(0, 1000),
	"acceleratorCount":       wire.Between(0, 1024),
	"draftTokenCount":        wire.AtLeast(0),
	"ngramSpeculationLength": wire.AtLeast(0),
	"directRouteApiKeys":     {MaxItems: maxDirectKeys, Both: true},
	"TrackerConfig.apiKey":   {Both: true},

	"DeployedModel.state": wire.OneOf("STATE_UNSPECIFIED", domain.ModelDeployingState, domain.ModelDeployedState, domain.ModelUndeployingState, domain.ModelFailedState),

	"maxValue":        {Instead: wire.Schema{"type": []string{"string", "integer", "null"}, "pattern": countPattern}},
	"ModelCopy.state": wire.OneOf(domain.CopyPreparing, domain.CopyReady, domain.CopyFailed),

	"Node.state": wire.OneOf(domain.NodeJoining, domain.NodeReady, domain.NodeGone, domain.NodeRevoked),
	"pool":       {Enum: []string{"", domain.PoolTraining, domain.PoolInference}},

	"Health.status":                     wire.OneOf("ok"),
	"Event.specversion":                 wire.OneOf("1.0"),
	"Event.position":                    {Pattern: countPattern},
	"Completion.object":                 wire.OneOf("text_completion"),
	"ChatCompletion.object":             wire.OneOf("chat.completion"),
	"ChatChunk.object":                  wire.OneOf("chat.completion.chunk"),
	"ChatMessage.role":                  wire.OneOf("system", "developer", "user", "assistant", "tool"),
	"ChatAnswer.role":                   wire.OneOf("assistant"),
	"ChatDelta.role":                    wire.OneOf("assistant"),
	"ChatMessage.content":               {Instead: contentSchema},
	"ChatMessage.refusal":               {Instead: wire.Schema{"type": []string{"string", "null"}}},
	"ChatMessage.name":                  {MaxLength: maxName},
	"ChatFunction.description":          {MaxLength: maxToolText},
	"ChatBody.messages":                 {MaxItems: maxMessages},
	"ChatBody.tools":                    {MaxItems: maxTools},
	"ChatBody.tool_choice":              {Instead: toolChoiceSchema},
	"ChatBody.model":                    {MaxLength: 512},
	"ChatBody.stop":                     {Instead: stopSchema},
	"ChatBody.user":                     {MaxLength: maxUserSize},
	"ChatBody.logprobs":                 {Instead: logprobsSchema},
	"ChatTool.type":                     wire.OneOf("function"),
	"ChatToolCall.type":                 wire.OneOf("function"),
	"CompletionLogprobs.token_logprobs": {Instead: wire.Schema{"type": "array", "items": wire.Schema{"type": []string{"number", "null"}}}},
	"CompletionLogprobs.top_logprobs": {Instead: wire.Schema{"type": "array", "items": wire.Schema{"type": []string{"object", "null"},
		"additionalProperties": wire.Schema{"type": "number"}}}},
	"TokenLogprob.top_logprobs": {},
	"mirostat_target":           wire.Between(1, maxPerplexity),
	"mirostat_lr":               wire.Between(0, 1),
	"InferenceModel.object":     wire.OneOf("model"),
	"InferenceModelList.object": wire.OneOf("list"),

	"CompletionBody.model":             {MaxLength: 512},
	"CompletionBody.prompt":            {Instead: promptSchema},
	"CompletionBody.stop":              {Instead: stopSchema},
	"CompletionBody.user":              {MaxLength: maxUserSize},
	"prompt_cache_isolation_key":       {MaxLength: 512},
	"n":                                wire.Between(1, 128),
	"max_tokens":                       wire.Between(0, maxOutputTokens),
	"max_completion_tokens":            wire.Between(0, maxOutputTokens),
	"temperature":                      wire.Between(0, 2),
	"InferenceParameters.temperature":  wire.Between(0, 2),
	"top_k":                            wire.Between(0, 100),
	"top_p":                            wire.Between(0, 1),
	"min_p":                            wire.Between(0, 1),
	"typical_p":                        wire.Between(0, 1),
	"frequency_penalty":                wire.Between(-2, 2),
	"presence_penalty":                 wire.Between(-2, 2),
	"repetition_penalty":               wire.Between(0, 2),
	"CompletionBody.logprobs":          {Instead: logprobsSchema},
	"top_logprobs":                     wire.Between(0, 5),
	"echo_last":                        wire.Between(0, maxOutputTokens),
	"context_length_exceeded_behavior": wire.OneOf("truncate", "error"),
	"reasoning_effort": {Instead: wire.Schema{"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"none", "low", "medium", "high"}},
		wire.Schema{"type": "boolean"}, wire.Schema{"type": "integer", "minimum": 1}}}},
	"reasoning_history": wire.OneOf("disabled", "interleaved", "preserved"),
	"prediction": {Instead: wire.Schema{"anyOf": []any{wire.Schema{"type": "string"}, wire.Schema{"type": "object", "properties": map[string]any{
		"type":    wire.Schema{"type": "string", "enum": []string{"content"}, "description": "What kind of prediction it is."},
		"content": contentSchema}}}}},
	"speculation": {Instead: wire.Schema{"type": "string"}},

	"TranscriptionForm.url":             {MaxLength: maxURL},
	"TranscriptionForm.model":           {MaxLength: 512},
	"TranscriptionForm.response_format": wire.OneOf(transcriptFormats...),
	"timestamp_granularities": {Instead: wire.Schema{"anyOf": []any{granularity,
		wire.Schema{"type": "array", "items": granularity}}}},
	"TranscriptionForm.language":    wire.OneOf(domain.SpeechLanguages...),
	"TranscriptionForm.prompt":      {MaxLength: maxSpeechPrompt},
	"TranscriptionForm.temperature": {Pattern: `^[0-9.]+( *, *[0-9.]+)*$`},
	"task":                          wire.OneOf(taskTranscribe, taskTranslate),
	"vad_model":                     wire.OneOf(domain.VADModels...),
	"alignment_model":               wire.OneOf(domain.AlignmentModels...),
	"preprocessing":                 wire.OneOf(preprocessings...),
	"min_speakers":                  wire.Between(1, maxSpeakers),
	"max_speakers":                  {Pattern: "^([0-9]+|inf)$"},
	"TranscriptSegment.temperature": {},
	"VerboseTranscript.language":    {},
	"TranscriptWord.language":       {},
	"TranscriptEvent.type":          wire.OneOf(eventDelta, eventProgress, eventDone),
	"AudioUsage.type":               wire.OneOf("duration"),

	"ManagementError.details": {Instead: wire.Schema{"type": "array", "items": wire.Schema{"anyOf": []any{
		wire.Schema{"$ref": "#/components/schemas/ErrorInfo"}, wire.Schema{"$ref": "#/components/schemas/BadRequest"}}}}},
	"ManagementError.code": wire.Between(1, 16),
	"ErrorInfo.@type":      wire.OneOf("ErrorInfo"),
	"BadRequest.@type":     wire.OneOf("BadRequest"),
}

// contentSchema is a text, or a list of parts of text.
var granularity = wire.Schema{"type": "string", "enum": []string{"word", "segment", "word,segment"}}

var contentSchema = wire.Schema{"description": "A text, or a list of parts of text.", "anyOf": []any{wire.Schema{"type": []string{"string", "null"}}, wire.Schema{"type": "array", "items": wire.Schema{
	"type": "object", "required": []string{"type", "text"}, "properties": map[string]any{
		"type": wire.Schema{"type": "string", "enum": []string{"text"}, "description": "What kind of part it is."},
		"text": wire.Schema{"type": "string", "description": "The text."}}}}}}

// logprobsSchema is whether they are asked for, or how many alternatives are.
var logprobsSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "boolean"}, wire.Schema{"type": "integer", "minimum": 0, "maximum": 5}}}

var tokenSchema = wire.Schema{"type": "integer", "minimum": 0}

// promptSchema is text, texts, tokens, or lists of tokens.
var promptSchema = wire.Schema{"anyOf": []any{
	wire.Schema{"type": "string"},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "string"}},
	wire.Schema{"type": "array", "items": tokenSchema},
	wire.Schema{"type": "array", "maxItems": maxPrompts, "items": wire.Schema{"type": "array", "items": tokenSchema}},
}}

var stopText = wire.Schema{"type": "string", "maxLength": maxStopSize}

// stopSchema is one stop sequence or several.
var stopSchema = wire.Schema{"anyOf": []any{stopText, wire.Schema{"type": "array", "maxItems": maxStops, "items": stopText}}}

var toolChoiceSchema = wire.Schema{"anyOf": []any{wire.Schema{"type": "string", "enum": []string{"auto", "none", "required"}},
	wire.Schema{"type": "object", "required": []string{"type", "function"}, "properties": map[string]any{
		"type": wire.Schema{"type": "string", "enum": []string{"function"}, "description": "What is called."},
		"function": wire.Schema{"type": "object", "required": []string{"name"}, "description": "The function that must be called.", "properties": map[string]any{
			"name": wire.Schema{"type": "string", "description": "One of the tools."}}}}}}}

// jobStates are those of jobs of every kind.
var jobStates = []string{"JOB_STATE_UNSPECIFIED", domain.JobCreatingState, domain.JobRunningState, domain.JobCompletedState, domain.JobFailedState,
	domain.JobCancelledState, domain.JobDeletingState, domain.JobWritingState, domain.JobValidatingState, domain.JobCleaningState,
	domain.JobPendingState, domain.JobExpiredState, domain.JobRequeueState, domain.JobPreparingState, domain.JobIdleState,
	domain.JobCancellingState, domain.JobEarlyState, domain.JobPausedState}
