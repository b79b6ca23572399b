package rest

// shapeTexts describe deployment shapes and the settings that deployments share with them.
var shapeTexts = map[string]string{
	"deploymentShape": "Resource name of a deployment shape or of one of its versions.",
	"CreateDeploymentShapeRequest.deploymentShape": "The deployment shape.",
	"deploymentShapeId":                            "ID of the new shape. The server generates one by default.",
	"snapshot":                                     "The shape at this version.",
	"validated":                                    "Whether a reviewer validated the version.",
	"latestValidated":                              "Whether the version is the latest validated version.",
	"capabilities":                                 "Optional features of deployments with this shape.",
	"acceleratorShare": "Part of one device that each replica gets, in thousandths; 0 means whole devices. The replica " +
		"runs on a node whose operator lets replicas share devices, and the engine limits its memory; no hardware does. " +
		"Cannot be combined with deploymentShape, or an acceleratorCount above 1.",
	"acceleratorCount": "Number of devices per replica; 0 means the estimated minimum. A count is rejected when no " +
		"acceleratorType is given and the nodes have only CPUs.",
	"acceleratorType": "Device type. Default: the type with the most devices on the nodes that could hold a replica; " +
		"VENDOR_A_A100_80GB when no node is registered; none when the nodes have only CPUs.",
	"precision":                       "Number format that the model is served in.",
	"disableDeploymentSizeValidation": "Whether to skip the check that the model fits on the devices.",
	"enableAddons":                    "Whether addons (LoRA adapters) can be loaded.",
	"draftTokenCount":                 "Draft tokens per step of speculative decoding.",
	"draftModel": "Draft model for speculative decoding. The empty string turns off the draft " +
		"model of the shape.",
	"ngramSpeculationLength":     "N-gram length of prompt-lookup speculation.",
	"disableSpeculativeDecoding": "Whether speculative decoding is turned off.",
	"enableSessionAffinity":      "Whether requests of one user are routed to the same replica.",
	"numLoraDeviceCached": "Maximum number of addons that a replica of a deployment with the shape has in its device " +
		"memory; 0 means all. A request for another addon loads it in place of the one that was used least recently.",
	"presetType":              "Workload that the shape is optimized for.",
	"createDeploymentRequest": "Create request of the deployment.",
	"deployment":              "The deployment to create.",
	"deploymentId":            "ID of the deployment to create.",
	"disableAutoDeploy": "Whether requests that name only the model are not routed to this deployment. " +
		"MODEL#DEPLOYMENT and the deployment's own name still reach it.",
	"validateOnly":           "Whether to validate only, and create nothing.",
	"skipShapeValidation":    "Whether to accept a shape version that is not validated.",
	"skipImageTagValidation": "Whether to skip the policy that blocks image tags.",

	"DeploymentShape.draftModel":    "Draft model for speculative decoding. Deprecated: set draftModel of the deployment.",
	"DeploymentShape.baseModel":     "Resource name of the model that deployments with the shape serve.",
	"DeploymentShapeVersion.public": "Whether every account may read and use the version.",
}

// deploymentTexts describe deployments and their addons.
var deploymentTexts = map[string]string{
	"directRouteApiKeys": "Keys of the direct route; an update replaces all of them. The server stores hashes; only the " +
		"response to the request that sets the keys contains them.",
	"directRouteType": "Type of the direct route, which bypasses the gateway. INTERNET gives a directRouteHandle.",
	"Deployment.directRouteHandle": "Host name of the direct route, present when directRouteType is INTERNET and the " +
		"server has --direct-domain. The direct route serves completions, chat completions, responses, embeddings and " +
		"models.",
	"Deployment.cluster":            "Installation that the deployment was created in: the server's --cluster.",
	"desiredReplicaCount":           "Current target number of replicas.",
	"replicaCount":                  "Current number of replicas.",
	"Scaling.replicaCount":          "Target number of replicas.",
	"replicaStats":                  "Number of replicas by state.",
	"pendingSchedulingReplicaCount": "Replicas that wait for a node.",
	"downloadingModelReplicaCount":  "Replicas that download the model.",
	"initializingReplicaCount":      "Replicas that load the model.",
	"readyReplicaCount":             "Replicas that serve requests.",
	"minReplicaCount":               "Minimum number of replicas; 0 allows scaling to zero.",
	"maxReplicaCount":               "Maximum number of replicas. The default is the larger of minReplicaCount and 1.",
	"maxWithRevocableReplicaCount":  "Maximum number of replicas including preemptible ones.",
	"autoscalingPolicy":             "When to add and remove replicas.",
	"scaleUpWindow":                 "How long load must be high before replicas are added.",
	"scaleDownWindow":               "How long load must be low before replicas are removed.",
	"scaleToZeroWindow":             "How long the deployment must get no requests before its last replica is removed.",
	"loadTargets": "Target load per replica, by metric: default, tokens_generated_per_second, prompt_tokens_per_second, " +
		"requests_per_second, concurrent_requests.",
	"deploymentTemplate": "Preset of the operator: the ID of a public deployment shape of the account default, whose " +
		"settings the " +
		"deployment takes. For accounts of type ENTERPRISE.",
	"autoTune": "Performance profile.",
	"longPrompt": "Whether prompts are long: replicas compute more prompt tokens in one step, and on CPUs keep twice as " +
		"many prompt prefixes. The completions are the same.",
	"placement": "Where replicas may run.",
	"placementStrategy": "How replicas are placed relative to one another. By default they are packed onto accelerators " +
		"in use, and spread over regions, zones and nodes where this leaves no more accelerators unusable. SPREAD spreads " +
		"them in any case; PACK places them together where this leaves no more accelerators unusable. A change applies to " +
		"the next replicas.",
	"Deployment.region": "Region of the replicas; REGION_UNSPECIFIED when it is unknown.",
	"Placement.region":  "Region in which replicas may run.",
	"multiRegion":       "Group of regions in which replicas may run.",
	"regions":           "Regions in which replicas may run.",
	"enableMtp":         "Whether to use multi-token prediction.",
	"enableHotReloadLatestAddon": "Whether a new addon replaces the previous one and serves requests that name only " +
		"the deployment.",
	"activeModelVersion": "Model that ready replicas serve: the baseModel, or the hot-loaded weights of a trainer job " +
		"(JOB@TRAINSTEP.STEP for a checkpoint); absent while no replica is ready.",
	"targetModelVersion": "Model that replicas load or serve; equal to activeModelVersion unless replicas are loading " +
		"other weights.",
	"pricingPlanId": "Pricing plan.",
	"numPeftDeviceCached": "Number of addons that every ready replica has in its device memory: at most " +
		"numLoraDeviceCached of the shape.",

	"default": "Whether the addon serves requests that name only the deployment, and, when several deployments have " +
		"loaded the same model, requests that name only the model. A deployment has at most one default: making another " +
		"addon the default clears this field of the previous default.",
	"DeployedModel.model":      "Resource name of the addon.",
	"DeployedModel.deployment": "Resource name of the deployment that loads the addon.",
}

// hotLoadTexts describe the weights that trainer jobs load into deployments.
var hotLoadTexts = map[string]string{
	"enableHotLoad": "Whether the deployment loads the newest weights of trainer jobs that name the deployment, " +
		"without a restart. Replicas then serve the model in its stored precision.",
	"hotLoad": "Hot-loaded weights: served, loading and rejected.",
	"served":  "Weights that are served; absent while the model's own weights are served.",
	"loading": "Weights that replicas load. Replicas serve the weights after every ready replica has " +
		"loaded them.",
	"refused":              "Newest weights that could not be loaded; status has the error.",
	"HotLoad.status":       "Why the newest weights could not be loaded; OK if there is no error.",
	"HotWeights.job":       "Trainer job that trained the weights.",
	"HotWeights.trainStep": "Number of the train step of the job.",
	"HotWeights.step":      "Step of the checkpoint; absent for the model of a completed train step.",
	"HotWeights.model":     "Model of the completed train step.",
	"HotWeights.adapter": "Whether the weights are a LoRA adapter; otherwise the weights are all parameters of the " +
		"model.",
	"HotWeights.position": "Log position of the job's newest event when it stored the weights.",
	"madeTime":            "Time at which the weights were stored.",
	"swapTime":            "Time at which replicas began to serve the weights.",
	"hotLoadBucketType":   "Type of the bucket of the weights.",
	"hotLoadBucketUrl":    "Bucket of the weights.",
}
