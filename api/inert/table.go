package inert

import (
	"slices"
	"strings"
)

// Collections of jobs, for Field.Requests.
const (
	supervised    = "supervisedFineTuningJobs"
	preference    = "dpoJobs"
	reinforcement = "reinforcementFineTuningJobs"
	trainer       = "rlorTrainerJobs"
)

const matchShapes = "matchDeploymentShapeVersions"

// Table lists the request fields that have no effect.
var Table = []Field{
	{Requests: []string{"listSecrets"}, Path: "?filter", Reason: "lists of secrets are not filtered"},
	{Requests: []string{"listSecrets"}, Path: "?orderBy", Reason: "lists of secrets are ordered by name"},

	{Requests: []string{"prepareModel"}, Path: "readMask", Reason: "the response is empty"},

	{Requests: []string{"datasets"}, Path: "externalUrl", Reason: rowsGiven, When: withRows},
	{Requests: []string{"datasets"}, Path: "credentialsSecret", Reason: rowsGiven, When: withRows},
	{Requests: []string{"datasets"}, Path: "credentialsSecret", Reason: "it is the secret with which externalUrl is read",
		When: &Condition{Text: "without externalUrl", Holds: func(f Facts) bool { return !f.isSet("externalUrl") }}},

	{Requests: []string{"evaluators"}, Path: "source.codeHostRepositoryName",
		Reason: "the server reads no code from repositories: upload the code, or give criteria"},

	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.deploymentId", Reason: matches},
	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.disableAutoDeploy", Reason: matches},
	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.disableSpeculativeDecoding", Reason: matches},
	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.validateOnly", Reason: matches},
	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.skipShapeValidation", Reason: matches},
	{Requests: []string{matchShapes}, Path: "createDeploymentRequest.skipImageTagValidation", Reason: matches},
	{Requests: []string{"deploymentShapes"}, Path: "disableSpeculativeDecoding",
		Reason: "it is deprecated: create the deployment with the parameter disableSpeculativeDecoding"},
	{Requests: []string{"deployments"}, Path: "draftModel", Reason: noDrafts, When: undrafted},
	{Requests: []string{"deployments"}, Path: "enableMtp",
		Reason: "no engine supports multi-token prediction (MTP): use draftModel or ngramSpeculationLength"},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "draftTokenCount",
		Reason: "tokens are drafted only for requests with the field prediction", When: withoutNgrams},
	{Requests: []string{"deployments"}, Path: "draftTokenCount", Reason: noDrafts, When: undrafted},
	{Requests: []string{"deployments"}, Path: "ngramSpeculationLength", Reason: noDrafts, When: undrafted},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "ngramSpeculationLength",
		Reason: "the engine's model server is started without options for n-grams", When: onEngines("llama.cpp", "openai")},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "draftTokenCount",
		Reason: "the engine's model server is started without options for draft tokens", When: onEngines("openai")},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "maxContextLength",
		Reason: "the engine's model server has its own limit, and the field changes only the estimate of acceleratorCount",
		When:   onEngines("openai")},
	{Requests: []string{"deployments"}, Path: "autoTune.longPrompt",
		Reason: "the engine's model server is started without options for long prompts", When: onEngines("openai")},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "precision",
		Reason: "replicas serve the precision of the stored weights, and the field changes only the estimate of " +
			"acceleratorCount; " +
			"prepare a copy with POST {model}:prepare", When: withoutCopy},
	{Requests: []string{"deployments", "deploymentShapes"}, Path: "precision",
		Reason: "adapters and hot-loaded weights work only with the precision of the stored weights", When: fixedWeights},
	{Requests: []string{"createDeployment"}, Path: "?skipImageTagValidation",
		Reason: "deployments have no image tags that could be validated"},
	{Requests: []string{"deployments"}, Path: "hotLoadBucketType", Reason: hotLoadStore, When: &Condition{
		Text:  "unless it is SERVICE_HOSTED",
		Holds: func(f Facts) bool { return f.Value != "SERVICE_HOSTED" }}},
	{Requests: []string{"deployments"}, Path: "hotLoadBucketUrl", Reason: hotLoadStore},
	{Requests: []string{"deployments"}, Path: "placement.region", Reason: noRegions, When: unlocated},
	{Requests: []string{"deployments"}, Path: "placement.multiRegion", Reason: noRegions, When: &Condition{
		Text: unlocated.Text, Holds: func(f Facts) bool { return !f.Located && f.Value != "GLOBAL" }}},
	{Requests: []string{"deployments"}, Path: "placement.regions", Reason: noRegions, When: unlocated},
	{Requests: []string{"deployments"}, Path: "pricingPlanId", Reason: "the server has no billing"},
	{Requests: []string{"deployments"}, Path: "directRouteApiKeys", Reason: "the deployment has no direct " +
		"route", When: &Condition{
		Text: "without directRouteType", Holds: func(f Facts) bool { return !f.isSet("directRouteType") }}},
	{Requests: []string{"deployments"}, Path: "directRouteType",
		Reason: "the server creates no service attachments in a cloud", When: &Condition{
			Text: "unless it is INTERNET", Holds: func(f Facts) bool { return f.Value != "INTERNET" }}},
	{Requests: []string{"deployments"}, Path: "directRouteType",
		Reason: "the operator must start the server with --direct-domain to have direct routes", When: &Condition{
			Text:  "on a server without a domain for direct routes",
			Holds: func(f Facts) bool { return f.Value == "INTERNET" && !f.DirectRoutes }}},
	{Requests: []string{"deployments"}, Path: "autoscalingPolicy.scaleToZeroWindow",
		Reason: "the last replica is never removed", When: &Condition{Text: "with minReplicaCount above 0",
			Holds: func(f Facts) bool { return f.number("minReplicaCount") > 0 }}},

	{Requests: []string{supervised, preference, reinforcement, trainer}, Path: "trackerConfig",
		Reason: "nothing is sent to the tracker", When: untracked},
	{Requests: []string{supervised, reinforcement, trainer}, Path: "objectStoreConfig", Reason: ownStore},
	{Requests: []string{reinforcement}, Path: "blobStoreConfig", Reason: ownStore},
	{Requests: []string{supervised}, Path: "region", Reason: noRegions, When: unlocated},
	{Requests: []string{preference, reinforcement, trainer}, Path: "trainingConfig.region", Reason: noRegions,
		When: unlocated},
	{Requests: []string{supervised}, Path: "mtpEnabled", Reason: noMTP},
	{Requests: []string{supervised}, Path: "mtpNumDraftTokens", Reason: noMTP},
	{Requests: []string{supervised}, Path: "mtpFreezeBaseModel", Reason: noMTP},
	{Requests: []string{preference}, Path: "lossConfig.dpo.refCacheBatchSize", Reason: refCache},
	{Requests: []string{preference}, Path: "lossConfig.dpo.refCacheConcurrency", Reason: refCache},
	{Requests: []string{reinforcement}, Path: "chunkSize", Reason: perStep, When: onEngines("torch")},
	{Requests: []string{reinforcement}, Path: "maxConcurrentRollouts", Reason: perStep, When: onEngines("torch")},
	{Requests: []string{reinforcement}, Path: "maxStaleness", Reason: perStep, When: onEngines("torch")},
	{Requests: []string{reinforcement}, Path: "outputMetrics", Reason: "jobs report no other " +
		"metrics", When: unknownMetrics},
	{Requests: []string{reinforcement}, Path: "mcpServer",
		Reason: "rollouts call no tools, but an evaluator can score the tool calls in a completion"},
	{Requests: []string{reinforcement}, Path: "maxInferenceReplicaCount",
		Reason: "one replica of the model generates all rollouts", When: onEngines("torch")},
	{Requests: []string{trainer}, Path: "rolloutDeploymentName", Reason: "set enableHotLoad of the deployment to " +
		"true", When: noHotLoad},
	{Requests: []string{trainer}, Path: "hotLoadDeploymentId", Reason: "set enableHotLoad of the deployment to " +
		"true", When: noHotLoad},

	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "stream_options",
		Reason: "the response is not a stream",
		When:   &Condition{Text: "without stream", Holds: func(f Facts) bool { return !f.isSet("stream") }}},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "speculation",
		Reason: "prediction takes precedence", When: &Condition{Text: "with prediction",
			Holds: func(f Facts) bool { return f.isSet("prediction") }}},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "speculation", Reason: noDrafts,
		When: draftless},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "prediction", Reason: noDrafts,
		When: draftless},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "speculation", Reason: ownDrafts,
		When: onEngines("vllm", "llama.cpp", "openai")},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "prediction", Reason: ownDrafts,
		When: onEngines("vllm", "llama.cpp", "openai")},
	{Requests: []string{"createCompletion"}, Path: "reasoning_history", Reason: "a prompt has no earlier messages"},
	{Requests: []string{"createChatCompletion"}, Path: "reasoning_history",
		Reason: "it selects which reasoning_content the prompt contains", When: &Condition{
			Text:  "without reasoning_content in the messages",
			Holds: func(f Facts) bool { return !f.isSet("messages.reasoning_content") }}},
	{Requests: []string{"createCompletion", "createChatCompletion"}, Path: "mirostat_lr",
		Reason: "it is the learning rate of mirostat sampling", When: &Condition{Text: "without mirostat_target",
			Holds: func(f Facts) bool { return !f.isSet("mirostat_target") }}},
	{Requests: []string{"createChatCompletion"}, Path: "messages.content.image_url.detail", Reason: scaledImages,
		When: unlessAuto},
	{Requests: []string{"createChatCompletion"}, Path: "messages.refusal", Reason: "prompts do not contain refusals"},

	{Requests: []string{"createResponse"}, Path: "include", Reason: "responses contain no encrypted reasoning, and " +
		"the server has no " +
		"built-in tools", When: &Condition{Text: "with a value other than message.output_text.logprobs",
		Holds: func(f Facts) bool {
			list, _ := f.Value.([]any)
			return slices.ContainsFunc(list, func(value any) bool { return value != "message.output_text.logprobs" })
		}}},
	{Requests: []string{"createResponse"}, Path: "input.encrypted_content",
		Reason: "the server has no key to decrypt reasoning: send its text as content"},
	{Requests: []string{"createResponse"}, Path: "input.content.detail", Reason: scaledImages, When: unlessAuto},
	{Requests: []string{"createResponse"}, Path: "max_tool_calls",
		Reason: "it limits calls of built-in tools, which the server does not have"},
	{Requests: []string{"createResponse"}, Path: "reasoning.generate_summary", Reason: noSummaries},
	{Requests: []string{"createResponse"}, Path: "reasoning.summary", Reason: noSummaries},
	{Requests: []string{"createResponse"}, Path: "service_tier", Reason: "the server has one tier",
		When: &Condition{Text: "unless it is auto or default",
			Holds: func(f Facts) bool { return f.Value != "auto" && f.Value != "default" }}},
	{Requests: []string{"createResponse"}, Path: "stream_options.include_obfuscation", Reason: "the server adds no " +
		"padding to events"},
	{Requests: []string{"createResponse"}, Path: "text.verbosity",
		Reason: "models have no setting for the length of their text: state the length in " +
			"instructions", When: &Condition{Text: "unless it is medium",
			Holds: func(f Facts) bool { return f.Value != "medium" }}},

	{Requests: []string{"createTranscription", "createTranslation"}, Path: "min_speakers", Reason: countsSpeakers,
		When: withoutDiarize},
	{Requests: []string{"createTranscription", "createTranslation"}, Path: "max_speakers", Reason: countsSpeakers,
		When: withoutDiarize},
}

// Values of Field.Reason, each of which is the reason of several fields.
const (
	matches        = "the operation only lists validated shape versions that fit the model; it creates no deployment"
	hotLoadStore   = "replicas load weights from the server's own storage"
	noRegions      = "nodes have a region only if the operator starts their agents with --region"
	ownStore       = "jobs read from and write to the server's own storage: import datasets with their externalUrl"
	rowsGiven      = "the rows of such a dataset do not change"
	noMTP          = "no trainer supports multi-token prediction (MTP)"
	refCache       = "the trainer chooses the size of the batches in which the reference model computes log-probabilities"
	perStep        = "each training step generates the rollouts of its own rows"
	ownDrafts      = "the engine drafts tokens only with the draft model or n-grams of the deployment"
	noDrafts       = "the deployment's replicas draft no tokens"
	countsSpeakers = "speakers are counted only by diarization"
	scaledImages   = "engines scale each image as the model requires"
	noSummaries    = "the server does not summarize reasoning; the field content has the complete reasoning"
)

// metricGroups lists the prefixes of the names of the metrics that trainers report.
var metricGroups = []string{"train/", "eval/", "reward/", "rollout/"}

// Values of Field.When, most of which are the condition of several fields.
var (
	withRows = &Condition{Text: "on a dataset that is READY or derived", Holds: func(f Facts) bool {
		return f.text("state") == "READY" || f.isSet("transformed") || f.isSet("splitted.fraction")
	}}
	withoutNgrams = &Condition{Text: "without ngramSpeculationLength and draftModel",
		Holds: func(f Facts) bool {
			return !f.isSet("ngramSpeculationLength") && !f.isSet("draftModel") && !f.isSet("disableSpeculativeDecoding")
		}}
	undrafted = &Condition{Text: "on a deployment that was created with disableSpeculativeDecoding",
		Holds: func(f Facts) bool { return f.isSet("disableSpeculativeDecoding") }}
	unlessAuto  = &Condition{Text: "unless it is auto", Holds: func(f Facts) bool { return f.Value != "auto" }}
	unlocated   = &Condition{Text: "while no node has a region", Holds: func(f Facts) bool { return !f.Located }}
	draftless   = &Condition{Text: undrafted.Text, Holds: func(f Facts) bool { return f.NoDrafts }}
	withoutCopy = &Condition{Text: "without a copy of the model in this precision", Holds: func(f Facts) bool {
		precision, _ := f.Value.(string)
		return f.HasPrecision != nil && !f.hasFixedWeights() && !f.HasPrecision(f.text("baseModel"), precision, true)
	}}
	fixedWeights = &Condition{Text: "with enableAddons or enableHotLoad", Holds: func(f Facts) bool {
		precision, _ := f.Value.(string)
		return f.HasPrecision != nil && f.hasFixedWeights() && !f.HasPrecision(f.text("baseModel"), precision, false)
	}}
	untracked = &Condition{Text: "unless enabled is true", Holds: func(f Facts) bool {
		tracker, _ := f.Value.(map[string]any)
		return tracker["enabled"] != true
	}}
	unknownMetrics = &Condition{Text: "for names that begin with none of " + strings.Join(metricGroups, ", "),
		Holds: func(f Facts) bool {
			names, _ := f.Value.(string)
			return slices.ContainsFunc(strings.Split(names, ","), func(name string) bool {
				name = strings.TrimSpace(name)
				return name != "" && !slices.ContainsFunc(metricGroups,
					func(group string) bool { return strings.HasPrefix(name, group) })
			})
		}}
	withoutDiarize = &Condition{Text: "without diarize", Holds: func(f Facts) bool { return !f.isSet("diarize") }}
	noHotLoad      = &Condition{Text: "while the deployment does not have enableHotLoad", Holds: func(f Facts) bool {
		ref, _ := f.Value.(string)
		enabled, ok := f.HotLoads(ref)
		return ok && !enabled
	}}
)

// onEngines returns the condition that at least one node on which the request may run has one of
// the engines.
func onEngines(names ...string) *Condition {
	text := strings.Join(names, ", ")
	if at := strings.LastIndex(text, ", "); at >= 0 {
		text = text[:at] + " or" + text[at+1:]
	}
	return &Condition{Text: "on nodes with the engine " + text, Engines: names, Holds: func(f Facts) bool {
		return f.Engines != nil && slices.ContainsFunc(f.Engines(), func(name string) bool {
			return slices.Contains(names, name)
		})
	}}
}

// Requests returns the collections and operations in Table, in its order.
func Requests() (names []string) {
	for _, f := range Table {
		for _, name := range f.Requests {
			if !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names
}
