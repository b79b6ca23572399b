package api

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/rest"
	"anneal/api/wire"
)

// Fields that the specification of the API has for training, and for several kinds of jobs.
const (
	trainingFields = "outputModel baseModel warmStartFrom jinjaTemplate learningRate maxContextLength loraRank " +
		"region epochs batchSize gradientAccumulationSteps learningRateWarmupSteps"
	shownOfTheirs = " trainerShardingScheme!{tensorParallelism pipelineParallelism contextParallelism " +
		"expertParallelism sequenceParallelism} loraAlpha! loraDropout! loraTargetModules!"
	trackerFields = " trackerConfig{enabled apiKey project entity runId url!}"
	storeFields   = " objectStoreConfig{credentialsSecret iamRoleArn}"
	lossFields    = " lossConfig{method klBeta dpo{beta refCacheConcurrency refCacheBatchSize} orpo{lambda}}"
	lifeFields    = "name! displayName createTime! completedTime! state! status!{code message} createdBy!"
	wholeTraining = " trainingConfig{" + trainingFields + " batchSizeSamples optimizerWeightDecay" + shownOfTheirs + "}"
	shapeFields   = "displayName description baseModel acceleratorCount acceleratorType precision " +
		"disableDeploymentSizeValidation enableAddons draftTokenCount draftModel " +
		"ngramSpeculationLength disableSpeculativeDecoding enableSessionAffinity numLoraDeviceCached maxContextLength " +
		"presetType name! createTime! updateTime! modelType! parameterCount!"
)

// theInterface contains the fields of each resource in the specification of the API. ! marks
// output-only fields.
var theInterface = map[reflect.Type]string{
	reflect.TypeFor[rest.Deployment](): "baseModel displayName description expireTime minReplicaCount maxReplicaCount " +
		"maxWithRevocableReplicaCount " +
		"autoscalingPolicy{scaleUpWindow scaleDownWindow scaleToZeroWindow loadTargets} acceleratorCount acceleratorType " +
		"precision enableAddons draftTokenCount draftModel " +
		"ngramSpeculationLength enableSessionAffinity directRouteApiKeys directRouteType deploymentTemplate " +
		"autoTune{longPrompt} placement{region multiRegion regions} " +
		"maxContextLength disableDeploymentSizeValidation enableMtp enableHotLoad hotLoadBucketType hotLoadBucketUrl " +
		"enableHotReloadLatestAddon deploymentShape " +
		"activeModelVersion! targetModelVersion! pricingPlanId name! createTime! purgeTime! deleteTime! state! " +
		"status!{code message} desiredReplicaCount! replicaCount! cluster! " +
		"numPeftDeviceCached! directRouteHandle! region! updateTime! " +
		"replicaStats!{pendingSchedulingReplicaCount downloadingModelReplicaCount initializingReplicaCount " +
		"readyReplicaCount}",
	reflect.TypeFor[rest.DeploymentShapeVersion](): "name! createTime! " +
		"snapshot!{" + strings.ReplaceAll(shapeFields, "!", "") + "} validated public latestValidated! capabilities!",
	reflect.TypeFor[rest.DeploymentShape](): shapeFields,
	reflect.TypeFor[rest.Dataset](): "name! displayName exampleCount createTime! state! status!{code message} format " +
		"createdBy! updateTime! sourceJobName estimatedTokenCount! averageTurnCount! " +
		"externalUrl userUploaded evaluationResult{evaluationJobId} transformed{sourceDatasetId filter originalFormat} " +
		"splitted{sourceDatasetId} evalProtocol",
	reflect.TypeFor[rest.Evaluator](): "name! displayName description createTime! createdBy! updateTime! state! " +
		"criteria{type name description codeSnippets{language fileContents entryFile entryFunc}} " +
		"requirements entryPoint status!{code message} commitHash source{type codeHostRepositoryName} defaultDataset",
	reflect.TypeFor[rest.ReinforcementJob](): lifeFields + " dataset evaluator evaluationDataset " +
		"evalAutoCarveout" + wholeTraining + trackerFields + storeFields +
		" blobStoreConfig{credentialsSecret managedIdentityClientId tenantId} outputStats! " +
		"inferenceParameters{maxOutputTokens temperature topP topK responseCandidatesCount extraBody} " +
		"chunkSize outputMetrics mcpServer maxInferenceReplicaCount " +
		"nodeCount" + lossFields + " trainerLogsSignedUrl! acceleratorSeconds! maxConcurrentRollouts " +
		"maxConcurrentEvaluations purpose " +
		"jobProgress!{percent epoch totalInputRequests totalProcessedRequests successfullyProcessedRequests " +
		"failedRequests outputRows inputTokens outputTokens cachedInputTokenCount}",
	reflect.TypeFor[rest.TrainerJob](): lifeFields + " dataset evaluationDataset " +
		"evalAutoCarveout" + wholeTraining + " rewardWeights" + trackerFields + storeFields +
		" keepAlive rolloutDeploymentName" + lossFields + " nodeCount acceleratorSeconds! serviceMode directRouteHandle! " +
		"hotLoadDeploymentId",
	reflect.TypeFor[rest.SupervisedJob](): lifeFields + " dataset" + storeFields + " " + trainingFields + " earlyStop" +
		trackerFields + " evaluationDataset isTurbo evalAutoCarveout updateTime! nodes " +
		"mtpEnabled mtpNumDraftTokens mtpFreezeBaseModel metricsFileSignedUrl trainerLogsSignedUrl! batchSizeSamples " +
		"optimizerWeightDecay estimatedCost!{currencyCode units nanos}",
	reflect.TypeFor[rest.DPOJob](): lifeFields + " dataset " +
		"trainingConfig{" + trainingFields + shownOfTheirs + "}" + trackerFields,
	reflect.TypeFor[rest.Account](): "email name! displayName createTime! accountType state! status!{code message} " +
		"suspendState! updateTime!",
	reflect.TypeFor[rest.Secret](): "name keyName value",
}

// TestEveryFieldOfTheInterface checks that every field in the specification of the API exists, and
// that it can be set unless the specification marks it as output-only.
func TestEveryFieldOfTheInterface(t *testing.T) {
	for typ, fields := range theInterface {
		rest := wantFields(t, typ, fields, false)
		require.Empty(t, strings.TrimSpace(rest), typ.Name())
	}
}

// wantFields checks that typ has each of the fields, a text like those in theInterface, up to a
// closing brace, and returns the rest of the text. With shown, the fields are part of an
// output-only field.
func wantFields(t *testing.T, typ reflect.Type, fields string, shown bool) string {
	t.Helper()
	shape := wire.StructOf(typ)
	for {
		fields = strings.TrimLeft(fields, " ")
		if fields == "" || fields[0] == '}' {
			return strings.TrimPrefix(fields, "}")
		}
		end := strings.IndexAny(fields+" ", "! {}")
		name := fields[:end]
		fields = fields[end:]
		at, there := shape.ByName[name]
		require.True(t, there, "%s has no %s", typ.Name(), name)
		field := shape.Fields[at]
		output := strings.HasPrefix(fields, "!")
		fields = strings.TrimPrefix(fields, "!")
		if !shown {
			require.Equal(t, output, field.Output, "whether %s.%s is output-only", typ.Name(), name)
		}
		if strings.HasPrefix(fields, "{") {
			inner := wire.Deref(field.Type)
			if inner.Kind() == reflect.Slice {
				inner = wire.Deref(inner.Elem())
			}
			fields = wantFields(t, inner, fields[1:], shown || output)
		}
	}
}
