package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// fieldRules constrains the values of fields. A key is the name of a field, or of a type and its
// field. The package domain checks enumerations against the same lists of values, and tests check
// all requests and responses against these rules.
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

	"Dataset.state": wire.OneOf("STATE_UNSPECIFIED", domain.DatasetUploading, domain.DatasetReady),
	"format":        wire.OneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),
	"rowShape": wire.OneOf(domain.ShapeChat, domain.ShapePreference, domain.ShapeCompletion, domain.ShapePrompt,
		domain.ShapeSamples),
	"originalFormat": wire.OneOf(formatUnspecified, domain.FormatChat, domain.FormatCompletion, domain.FormatRL),

	"Evaluator.state": wire.OneOf("STATE_UNSPECIFIED", domain.EvaluatorActive, domain.EvaluatorBuilding,
		domain.EvaluatorFailed),
	"Evaluator.criteria":     {MaxItems: domain.MaxCriteria},
	"Criterion.type":         wire.OneOf("TYPE_UNSPECIFIED", "CODE_SNIPPETS"),
	"EvaluatorSource.type":   wire.OneOf("TYPE_UNSPECIFIED", "TYPE_UPLOAD", "TYPE_CODE_HOST", "TYPE_TEMPORARY"),
	"Evaluator.revision":     wire.Min(1),
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
	"batchSize":                 wire.Min(0),
	"batchSizeSamples":          wire.Min(0),
	"gradientAccumulationSteps": wire.Min(0),
	"learningRateWarmupSteps":   wire.Min(0),
	"maxContextLength":          wire.Min(0),
	"jinjaTemplate":             {MaxLength: 64 << 10},
	"chunkSize":                 wire.Between(0, domain.MaxChunkSize),
	"nodeCount":                 wire.Between(0, domain.MaxJobNodes),
	"maxConcurrentRollouts":     wire.Between(0, domain.MaxConcurrent),
	"maxConcurrentEvaluations":  wire.Between(0, domain.MaxConcurrent),
	"maxInferenceReplicaCount":  wire.Between(0, 1000),
	"maxStaleness":              wire.Between(0, domain.MaxStaleness),
	"outputMetrics":             {MaxLength: 4096},
	"mcpServer":                 {MaxLength: 2048},
	"metricsFileSignedUrl":      {MaxLength: domain.MaxURL},
	"purpose":                   wire.OneOf("PURPOSE_UNSPECIFIED", "PURPOSE_PILOT"),
	"rewardWeights":             {MaxItems: domain.MaxRewards},
	"method": wire.OneOf(domain.LossUnspecified, domain.LossGRPO, domain.LossDAPO, domain.LossGSPO,
		domain.LossDPO, domain.LossORPO),
	"JobAcceleratorRow.method": wire.OneOf(domain.Methods...),
	"JobAccelerators.rows":     {MaxItems: domain.MaxJobAcceleratorRows},

	"klBeta":              wire.Between(0, 10),
	"beta":                wire.Between(0, 100),
	"lambda":              wire.Between(0, 100),
	"refCacheConcurrency": wire.Between(0, 1024),
	"refCacheBatchSize":   wire.Between(0, 1<<20),

	"Deployment.state": wire.OneOf("STATE_UNSPECIFIED", domain.DeploymentCreatingState, domain.DeploymentReadyState,
		domain.DeploymentUpdatingState,
		domain.DeploymentFailedState, domain.DeploymentDeletingState, domain.DeploymentDeletedState),
	"acceleratorType":   wire.OneOf(domain.ShapeAcceleratorTypes...),
	"precision":         wire.OneOf(domain.Precisions...),
	"placementStrategy": wire.OneOf(domain.PlacementStrategies...),
	"directRouteType": wire.OneOf("DIRECT_ROUTE_TYPE_UNSPECIFIED", "INTERNET", "CLOUD_A_PRIVATE_SERVICE_CONNECT",
		"CLOUD_B_PRIVATELINK"),
	"hotLoadBucketType": wire.OneOf("BUCKET_TYPE_UNSPECIFIED", "OBJECT_STORE_SERVER", "OBJECT_STORE_API", "CLOUD_C",
		"SERVICE_HOSTED"),
	"presetType":             wire.OneOf(domain.PresetTypes...),
	"capabilities":           wire.OneOf("CAPABILITY_UNSPECIFIED", domain.MultiLora),
	"minReplicaCount":        wire.Between(0, 1000),
	"maxReplicaCount":        wire.Between(0, 1000),
	"Scaling.replicaCount":   wire.Between(0, 1000),
	"acceleratorCount":       wire.Between(0, 1024),
	"acceleratorShare":       wire.Between(0, 999),
	"draftTokenCount":        wire.Min(0),
	"ngramSpeculationLength": wire.Min(0),
	"directRouteApiKeys":     {MaxItems: maxDirectKeys, Both: true},
	"TrackerConfig.apiKey":   {Both: true},
	"TrackerConfig.project":  {MaxLength: domain.MaxTrackerID},
	"TrackerConfig.entity":   {MaxLength: domain.MaxTrackerID},
	"TrackerConfig.runId":    {MaxLength: domain.MaxTrackerID},

	"DeployedModel.state": wire.OneOf("STATE_UNSPECIFIED", domain.ModelDeployingState, domain.ModelDeployedState,
		domain.ModelUndeployingState, domain.ModelUndeployedState, domain.ModelFailedState),

	"maxValue":        {Instead: wire.Schema{"type": []string{"string", "integer", "null"}, "pattern": wire.CountPattern}},
	"ModelCopy.state": wire.OneOf(domain.CopyPreparing, domain.CopyReady, domain.CopyFailed),

	"Node.state": wire.OneOf(domain.NodeJoining, domain.NodeReady, domain.NodeLostState, domain.NodeRevoked),
	"Node.scheduling": wire.OneOf(domain.NodeSchedulable, domain.NodeCordonedState, domain.NodeDrainingState,
		domain.NodeDrainedState),
	"pool": {Enum: []string{"", domain.PoolTraining, domain.PoolInference}},

	"InferenceParameters.temperature": wire.Between(0, 2),
}

// jobStates lists the states of all kinds of jobs.
var jobStates = []string{"JOB_STATE_UNSPECIFIED", domain.JobCreatingState, domain.JobRunningState,
	domain.JobCompletedState, domain.JobFailedState, domain.JobCancelledState, domain.JobDeletingState,
	domain.JobWritingResultsState, domain.JobValidatingState, domain.JobCleaningUpState, domain.JobPendingState,
	domain.JobExpiredState, domain.JobReQueueingState, domain.JobCreatingInputState, domain.JobIdleState,
	domain.JobCancellingState, domain.JobEarlyStoppedState, domain.JobPausedState}

// statusCodes returns the names of the canonical error codes.
func statusCodes() []string {
	var names []string
	for code := domain.OK; code <= domain.Unauthenticated; code++ {
		names = append(names, code.String())
	}
	return names
}
