package api

import "anneal/domain"

// fieldRules say what values a field may have, by field or by type and field.
// Lists of values are those that the domain validates with; the tests hold all
// that is asked and answered against them.
var fieldRules = map[string]rule{
	"Status.code":                 oneOf(statusCodes()...),
	"name":                        {most: 512, both: true},
	"displayName":                 {most: domain.MaxDisplayName},
	"Deployment.displayName":      {most: domain.MaxShortName},
	"DeploymentShape.displayName": {most: domain.MaxShortName},
	"Account.displayName":         {most: domain.MaxShortName},
	"description":                 {most: domain.MaxDescription},
	"DeploymentShape.description": {most: domain.MaxDescription - 1},
	"Criterion.description":       {most: 4096},
	"Criterion.name":              {most: 256},
	"email":                       {most: domain.MaxEmail},

	"Account.accountType":     oneOf("ACCOUNT_TYPE_UNSPECIFIED", domain.Enterprise),
	"Account.state":           oneOf("STATE_UNSPECIFIED", "CREATING", domain.AccountReady, "UPDATING", "DELETING"),
	"Account.suspendState":    oneOf(append([]string{domain.Unsuspended}, domain.SuspendStates...)...),
	"Suspension.suspendState": oneOf(domain.SuspendStates...),
	"Suspension.reason":       {most: domain.MaxDescription},
	"APIKey.role":             oneOf(domain.Roles...),

	"keyName":      {pattern: `^[A-Za-z_][A-Za-z0-9_-]{0,127}$`},
	"Secret.value": {most: MaxSecret, both: true},

	"Dataset.state":  oneOf("STATE_UNSPECIFIED", domain.DatasetUploading, domain.DatasetReady),
	"format":         oneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),
	"rowShape":       oneOf(domain.ShapeChat, domain.ShapePreference, domain.ShapeCompletion, domain.ShapePrompt, domain.ShapeSamples),
	"originalFormat": oneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),

	"Evaluator.state":        oneOf("STATE_UNSPECIFIED", domain.EvaluatorActive, domain.EvaluatorBuilding, domain.EvaluatorFailed),
	"Evaluator.criteria":     {entries: domain.MaxCriteria},
	"Criterion.type":         oneOf("TYPE_UNSPECIFIED", "CODE_SNIPPETS"),
	"EvaluatorSource.type":   oneOf("TYPE_UNSPECIFIED", "TYPE_UPLOAD", "TYPE_CODE_HOST", "TYPE_TEMPORARY"),
	"Evaluator.revision":     atLeast(1),
	"entryPoint":             {most: 1024},
	"commitHash":             {most: 1024},
	"language":               {most: 64},
	"entryFunc":              {most: 256},
	"codeHostRepositoryName": {most: 1024},

	"Model.state": oneOf("STATE_UNSPECIFIED", domain.ModelUploading, domain.ModelReady),
	"kind":        oneOf(domain.ModelKinds...),

	"SpeechSettings.format": oneOf(domain.SpeechFormats...),
	"speechFormat":          oneOf(domain.SpeechFormats...),

	"Model.precision": oneOf(domain.StoredPrecisions...),

	"SupervisedJob.state":       oneOf(jobStates...),
	"DPOJob.state":              oneOf(jobStates...),
	"ReinforcementJob.state":    oneOf(jobStates...),
	"TrainerJob.state":          oneOf(jobStates...),
	"percent":                   between(0, 100),
	"region":                    oneOf(domain.Regions...),
	"regions":                   oneOf(domain.Regions...),
	"multiRegion":               oneOf(domain.MultiRegions...),
	"epochs":                    between(0, domain.MaxEpochs),
	"learningRate":              between(0, 1),
	"optimizerWeightDecay":      between(0, 1),
	"loraRank":                  between(0, domain.MaxLoraRank),
	"batchSize":                 atLeast(0),
	"batchSizeSamples":          atLeast(0),
	"gradientAccumulationSteps": atLeast(0),
	"learningRateWarmupSteps":   atLeast(0),
	"maxContextLength":          atLeast(0),
	"jinjaTemplate":             {most: 64 << 10},
	"chunkSize":                 between(0, domain.MaxChunkSize),
	"nodeCount":                 between(0, domain.MaxJobNodes),
	"maxConcurrentRollouts":     between(0, domain.MaxConcurrent),
	"maxConcurrentEvaluations":  between(0, domain.MaxConcurrent),
	"maxInferenceReplicaCount":  between(0, 1000),
	"outputMetrics":             {most: 4096},
	"mcpServer":                 {most: 2048},
	"purpose":                   oneOf("PURPOSE_UNSPECIFIED", "PURPOSE_PILOT"),
	"rewardWeights":             {entries: domain.MaxRewards},
	"method":                    oneOf(domain.LossUnspecified, domain.LossGRPO, domain.LossDAPO, domain.LossGSPO, domain.LossDPO, domain.LossORPO),
	"klBeta":                    between(0, 10),
	"beta":                      between(0, 100),
	"lambda":                    between(0, 100),
	"refCacheConcurrency":       between(0, 1024),
	"refCacheBatchSize":         between(0, 1<<20),

	"Deployment.state": oneOf("STATE_UNSPECIFIED", domain.DeploymentCreatingState, domain.DeploymentReadyState, domain.DeploymentUpdatingState,
		domain.DeploymentFailedState, domain.DeploymentDeletingState, domain.DeploymentDeletedState),
	"acceleratorType":        oneOf(domain.ShapeAcceleratorTypes...),
	"precision":              oneOf(domain.Precisions...),
	"directRouteType":        oneOf("DIRECT_ROUTE_TYPE_UNSPECIFIED", "INTERNET", "CLOUD_A_PRIVATE_SERVICE_CONNECT", "CLOUD_B_PRIVATELINK"),
	"hotLoadBucketType":      oneOf("BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER", "OBJECT_STORE_API", "CLOUD_C", "SERVICE_HOSTED"),
	"presetType":             oneOf(domain.PresetTypes...),
	"capabilities":           oneOf("CAPABILITY_UNSPECIFIED", domain.MultiLora),
	"minReplicaCount":        between(0, 1000),
	"maxReplicaCount":        between(0, 1000),
	"Scaling.replicaCount":   between(0, 1000),
	"acceleratorCount":       between(0, 1024),
	"draftTokenCount":        atLeast(0),
	"ngramSpeculationLength": atLeast(0),
	"directRouteApiKeys":     {entries: maxDirectKeys, both: true},
	"TrackerConfig.apiKey":   {both: true},

	"DeployedModel.state": oneOf("STATE_UNSPECIFIED", domain.ModelDeployingState, domain.ModelDeployedState, domain.ModelUndeployingState, domain.ModelFailedState),

	"maxValue":        {instead: schema{"type": []string{"string", "integer", "null"}, "pattern": countPattern}},
	"ModelCopy.state": oneOf(domain.CopyPreparing, domain.CopyReady, domain.CopyFailed),

	"Node.state": oneOf(domain.NodeJoining, domain.NodeReady, domain.NodeGone, domain.NodeRevoked),
	"pool":       {enum: []string{"", domain.PoolTraining, domain.PoolInference}},

	"Health.status":                     oneOf("ok"),
	"Event.specversion":                 oneOf("1.0"),
	"Event.position":                    {pattern: countPattern},
	"Completion.object":                 oneOf("text_completion"),
	"ChatCompletion.object":             oneOf("chat.completion"),
	"ChatChunk.object":                  oneOf("chat.completion.chunk"),
	"ChatMessage.role":                  oneOf("system", "developer", "user", "assistant", "tool"),
	"ChatAnswer.role":                   oneOf("assistant"),
	"ChatDelta.role":                    oneOf("assistant"),
	"ChatMessage.content":               {instead: contentSchema},
	"ChatMessage.refusal":               {instead: schema{"type": []string{"string", "null"}}},
	"ChatMessage.name":                  {most: maxName},
	"ChatFunction.description":          {most: maxToolText},
	"ChatBody.messages":                 {entries: maxMessages},
	"ChatBody.tools":                    {entries: maxTools},
	"ChatBody.tool_choice":              {instead: toolChoiceSchema},
	"ChatBody.model":                    {most: 512},
	"ChatBody.stop":                     {instead: stopSchema},
	"ChatBody.user":                     {most: maxUserSize},
	"ChatBody.logprobs":                 {instead: logprobsSchema},
	"ChatTool.type":                     oneOf("function"),
	"ChatToolCall.type":                 oneOf("function"),
	"CompletionLogprobs.token_logprobs": {instead: schema{"type": "array", "items": schema{"type": []string{"number", "null"}}}},
	"CompletionLogprobs.top_logprobs": {instead: schema{"type": "array", "items": schema{"type": []string{"object", "null"},
		"additionalProperties": schema{"type": "number"}}}},
	"TokenLogprob.top_logprobs": {},
	"mirostat_target":           between(1, maxPerplexity),
	"mirostat_lr":               between(0, 1),
	"InferenceModel.object":     oneOf("model"),
	"InferenceModelList.object": oneOf("list"),

	"CompletionBody.model":             {most: 512},
	"CompletionBody.prompt":            {instead: promptSchema},
	"CompletionBody.stop":              {instead: stopSchema},
	"CompletionBody.user":              {most: maxUserSize},
	"prompt_cache_isolation_key":       {most: 512},
	"n":                                between(1, 128),
	"max_tokens":                       between(0, maxOutputTokens),
	"max_completion_tokens":            between(0, maxOutputTokens),
	"temperature":                      between(0, 2),
	"InferenceParameters.temperature":  between(0, 2),
	"top_k":                            between(0, 100),
	"top_p":                            between(0, 1),
	"min_p":                            between(0, 1),
	"typical_p":                        between(0, 1),
	"frequency_penalty":                between(-2, 2),
	"presence_penalty":                 between(-2, 2),
	"repetition_penalty":               between(0, 2),
	"CompletionBody.logprobs":          {instead: logprobsSchema},
	"top_logprobs":                     between(0, 5),
	"echo_last":                        between(0, maxOutputTokens),
	"context_length_exceeded_behavior": oneOf("truncate", "error"),
	"reasoning_effort": {instead: schema{"anyOf": []any{schema{"type": "string", "enum": []string{"none", "low", "medium", "high"}},
		schema{"type": "boolean"}, schema{"type": "integer", "minimum": 1}}}},
	"reasoning_history": oneOf("disabled", "interleaved", "preserved"),
	"prediction": {instead: schema{"anyOf": []any{schema{"type": "string"}, schema{"type": "object", "properties": map[string]any{
		"type":    schema{"type": "string", "enum": []string{"content"}, "description": "What kind of prediction it is."},
		"content": contentSchema}}}}},
	"speculation": {instead: schema{"type": "string"}},

	"TranscriptionForm.url":             {most: maxURL},
	"TranscriptionForm.model":           {most: 512},
	"TranscriptionForm.response_format": oneOf(transcriptFormats...),
	"timestamp_granularities": {instead: schema{"anyOf": []any{granularity,
		schema{"type": "array", "items": granularity}}}},
	"TranscriptionForm.language":    oneOf(domain.SpeechLanguages...),
	"TranscriptionForm.prompt":      {most: maxSpeechPrompt},
	"TranscriptionForm.temperature": {pattern: `^[0-9.]+( *, *[0-9.]+)*$`},
	"task":                          oneOf(taskTranscribe, taskTranslate),
	"vad_model":                     oneOf(domain.VADModels...),
	"alignment_model":               oneOf(domain.AlignmentModels...),
	"preprocessing":                 oneOf(preprocessings...),
	"min_speakers":                  between(1, maxSpeakers),
	"max_speakers":                  {pattern: "^([0-9]+|inf)$"},
	"TranscriptSegment.temperature": {},
	"VerboseTranscript.language":    {},
	"TranscriptWord.language":       {},
	"TranscriptEvent.type":          oneOf(eventDelta, eventProgress, eventDone),
	"AudioUsage.type":               oneOf("duration"),

	"ManagementError.details": {instead: schema{"type": "array", "items": schema{"anyOf": []any{
		schema{"$ref": "#/components/schemas/ErrorInfo"}, schema{"$ref": "#/components/schemas/BadRequest"}}}}},
	"ManagementError.code": between(1, 16),
	"ErrorInfo.@type":      oneOf("ErrorInfo"),
	"BadRequest.@type":     oneOf("BadRequest"),
}

// contentSchema is a text, or a list of parts of text.
var granularity = schema{"type": "string", "enum": []string{"word", "segment", "word,segment"}}

var contentSchema = schema{"description": "A text, or a list of parts of text.", "anyOf": []any{schema{"type": []string{"string", "null"}}, schema{"type": "array", "items": schema{
	"type": "object", "required": []string{"type", "text"}, "properties": map[string]any{
		"type": schema{"type": "string", "enum": []string{"text"}, "description": "What kind of part it is."},
		"text": schema{"type": "string", "description": "The text."}}}}}}

// logprobsSchema is whether they are asked for, or how many alternatives are.
var logprobsSchema = schema{"anyOf": []any{schema{"type": "boolean"}, schema{"type": "integer", "minimum": 0, "maximum": 5}}}

var tokenSchema = schema{"type": "integer", "minimum": 0}

// promptSchema is text, texts, tokens, or lists of tokens.
var promptSchema = schema{"anyOf": []any{
	schema{"type": "string"},
	schema{"type": "array", "maxItems": maxPrompts, "items": schema{"type": "string"}},
	schema{"type": "array", "items": tokenSchema},
	schema{"type": "array", "maxItems": maxPrompts, "items": schema{"type": "array", "items": tokenSchema}},
}}

var stopText = schema{"type": "string", "maxLength": maxStopSize}

// stopSchema is one stop sequence or several.
var stopSchema = schema{"anyOf": []any{stopText, schema{"type": "array", "maxItems": maxStops, "items": stopText}}}

var toolChoiceSchema = schema{"anyOf": []any{schema{"type": "string", "enum": []string{"auto", "none", "required"}},
	schema{"type": "object", "required": []string{"type", "function"}, "properties": map[string]any{
		"type": schema{"type": "string", "enum": []string{"function"}, "description": "What is called."},
		"function": schema{"type": "object", "required": []string{"name"}, "description": "The function that must be called.", "properties": map[string]any{
			"name": schema{"type": "string", "description": "One of the tools."}}}}}}}

// jobStates are those of jobs of every kind.
var jobStates = []string{"JOB_STATE_UNSPECIFIED", domain.JobCreatingState, domain.JobRunningState, domain.JobCompletedState, domain.JobFailedState,
	domain.JobCancelledState, domain.JobDeletingState, domain.JobWritingState, domain.JobValidatingState, domain.JobCleaningState,
	domain.JobPendingState, domain.JobExpiredState, domain.JobRequeueState, domain.JobPreparingState, domain.JobIdleState,
	domain.JobCancellingState, domain.JobEarlyState, domain.JobPausedState}
