package rest

// shapeTexts describes deployment shapes, and the settings that deployments have in common with
// them.
var shapeTexts = map[string]string{
	"deploymentShape": "Resource name of a deployment shape or of one of its versions.",
	"CreateDeploymentShapeRequest.deploymentShape": "The deployment shape to create.",
	"deploymentShapeId":                            "ID of the new deployment shape. The server generates one by default.",
	"snapshot":                                     "Settings of the shape in this version.",
	"validated": "Whether this version is marked as validated, so that deployments " +
		"can use it without skipShapeValidation.",
	"latestValidated": "Whether this is the newest version that is marked as validated.",
	"capabilities":    "Optional features that deployments with this shape have.",
	"acceleratorShare": "Part of a single accelerator that each replica gets, in thousandths; 0 means whole " +
		"accelerators. The replica runs on a node whose operator allows sharing. The engine limits the replica's memory, " +
		"but no hardware enforces it. Cannot be combined with deploymentShape, or with an acceleratorCount above 1.",
	"acceleratorCount": "Number of accelerators of each replica; 0 means the estimated minimum. If all nodes have " +
		"only CPUs, a number requires acceleratorType.",
	"acceleratorType": "Type of the accelerators. The default is the most frequent type on the nodes that could hold " +
		"a replica; VENDOR_A_A100_80GB if no node is registered; none if all nodes have only CPUs.",
	"precision": "Number format in which replicas serve the model.",
	"disableDeploymentSizeValidation": "Whether to skip the check that the model fits into the memory of the " +
		"accelerators.",
	"enableAddons":    "Whether addons (LoRA adapters) can be loaded into the deployment.",
	"draftTokenCount": "Number of tokens that speculative decoding drafts in each step.",
	"draftModel": "Model that drafts tokens for speculative decoding. The empty string means none, even if the shape " +
		"has one.",
	"ngramSpeculationLength": "Length of the n-grams with which speculative decoding looks up draft tokens in the " +
		"prompt.",
	"disableSpeculativeDecoding": "Whether speculative decoding is disabled.",
	"enableSessionAffinity":      "Whether all requests of one end user (field user) go to the same replica.",
	"numLoraDeviceCached": "Maximum number of addons in the accelerator memory of a replica; 0 means 64. A request for " +
		"another addon replaces the least frequently used one.",
	"presetType":              "Workload that the shape is optimized for.",
	"createDeploymentRequest": "Create request of the deployment for which shapes are looked up.",
	"deployment":              "The deployment to create.",
	"deploymentId":            "ID of the deployment to create.",
	"disableAutoDeploy": "Whether requests that name only the model are not routed to this deployment. Requests that " +
		"name MODEL#DEPLOYMENT or the deployment itself still reach it.",
	"validateOnly":           "Whether to validate the request only, and to create nothing.",
	"skipShapeValidation":    "Whether to accept a shape version that is not marked as validated.",
	"skipImageTagValidation": "Has no effect: this server never validates image tags.",

	"DeploymentShape.draftModel": "Model that drafts tokens for speculative decoding. Deprecated: set draftModel " +
		"of the deployment.",
	"DeploymentShape.baseModel":     "Resource name of the model that deployments with the shape serve.",
	"DeploymentShapeVersion.public": "Whether all accounts may read and use the version.",
}

// deploymentTexts describes deployments and their addons.
var deploymentTexts = map[string]string{
	"directRouteApiKeys": "Keys with which clients can use the direct route; an update replaces all of them. The " +
		"server stores only hashes, so only the response to the request that sets the keys contains them.",
	"directRouteType": "Type of the direct route. INTERNET gives the deployment a host name of its own, " +
		"directRouteHandle.",
	"Deployment.directRouteHandle": "Host name of the direct route; present if directRouteType is INTERNET and the " +
		"server is started with --direct-domain. It serves completions, chat completions, responses, embeddings and models.",
	"Deployment.cluster": "Name of the installation in which the deployment was created: the value of the " +
		"server's --cluster.",
	"desiredReplicaCount":  "Number of replicas that the deployment should have at present.",
	"replicaCount":         "Number of replicas that the deployment has at present.",
	"Scaling.replicaCount": "Number of replicas that the deployment should have.",
	"replicaStats":         "Numbers of replicas by state.",
	"Deployment.queue": "What the missing replicas of the deployment wait for, and the position of the next one in the " +
		"queue; absent if no replica is missing.",
	"pendingSchedulingReplicaCount": "Number of replicas that wait for a node.",
	"downloadingModelReplicaCount":  "Number of replicas that are downloading the model.",
	"initializingReplicaCount":      "Number of replicas that are loading the model.",
	"readyReplicaCount":             "Number of replicas that serve requests, without those that cannot be reached.",
	"minReplicaCount":               "Minimum number of replicas; 0 allows that the deployment is scaled to zero.",
	"maxReplicaCount":               "Maximum number of replicas. The default is the larger of minReplicaCount and 1.",
	"maxWithRevocableReplicaCount":  "Maximum number of replicas, including preemptible ones; 0 means maxReplicaCount.",
	"autoscalingPolicy":             "When replicas are added and removed.",
	"scaleUpWindow":                 "How long load must be high before replicas are added.",
	"scaleDownWindow":               "How long load must be low before replicas are removed.",
	"scaleToZeroWindow":             "How long the deployment must get no requests before its last replica is removed.",
	"loadTargets": "Load that each replica should have, by metric: default, tokens_generated_per_second, " +
		"prompt_tokens_per_second, requests_per_second, concurrent_requests.",
	"deploymentTemplate": "ID of a public deployment shape of the account default, from which the deployment takes " +
		"its settings. Only for accounts of type ENTERPRISE.",
	"autoTune": "Performance profile of the deployment.",
	"longPrompt": "Whether to optimize for long prompts: replicas compute more prompt tokens in one step, and " +
		"replicas on CPUs cache twice as many prompt prefixes. The completions are the same.",
	"placement": "Regions in which replicas may run.",
	"placementStrategy": "Where the scheduler places replicas relative to one another. By default it packs them onto " +
		"accelerators that are in use, and spreads them over regions, zones and nodes unless that fragments accelerators. " +
		"SPREAD always spreads them. PACK places them together unless that fragments accelerators. A change applies to " +
		"new replicas only.",
	"Deployment.region": "Region in which the replicas run; REGION_UNSPECIFIED if it is unknown.",
	"Placement.region":  "The only region in which replicas may run.",
	"multiRegion":       "Group of regions in which replicas may run.",
	"regions":           "List of regions in which replicas may run.",
	"enableMtp":         "Whether to use multi-token prediction (MTP).",
	"enableHotReloadLatestAddon": "Whether a new addon replaces the previous one, and serves the requests that name " +
		"only the deployment.",
	"activeModelVersion": "Model that ready replicas serve: the baseModel, or the hot-loaded weights of a trainer " +
		"job, whose checkpoints are named JOB@TRAINSTEP.STEP. Absent while no replica is ready.",
	"targetModelVersion": "Model that replicas serve or are loading. It differs from activeModelVersion while they " +
		"load other weights.",
	"pricingPlanId": "ID of a pricing plan.",
	"numPeftDeviceCached": "Number of addons that all ready replicas have in their accelerator memory; at most " +
		"numLoraDeviceCached of the shape, or else 64.",

	"default": "Whether the addon serves requests that name only the deployment and, if several deployments have " +
		"loaded the same model, requests that name only the model. A deployment has at most one default addon: making " +
		"another addon the default clears this field of the previous one.",
	"DeployedModel.model":      "Resource name of the addon.",
	"DeployedModel.deployment": "Resource name of the deployment that loads the addon.",
}

// hotLoadTexts describes the weights of trainer jobs that deployments hot-load.
var hotLoadTexts = map[string]string{
	"enableHotLoad": "Whether replicas load the newest weights of trainer jobs that name the deployment, without a " +
		"restart. They serve the model in the precision in which it is stored.",
	"hotLoad":              "Hot-loaded weights that replicas serve, are loading, and could not load.",
	"served":               "Weights that replicas serve; absent while they serve the model's own weights.",
	"loading":              "Weights that replicas are loading. They serve them once all ready replicas have loaded them.",
	"refused":              "Newest weights that replicas could not load; status has the error.",
	"HotLoad.status":       "Why the newest weights could not be loaded; OK if there is no error.",
	"HotWeights.job":       "Resource name of the trainer job that trained the weights.",
	"HotWeights.trainStep": "Number of the job's train step that trained the weights.",
	"HotWeights.step": "Optimizer step of the checkpoint with the weights; absent for the result of a completed " +
		"train step.",
	"HotWeights.model":    "Model that the completed train step created; absent for a checkpoint.",
	"HotWeights.adapter":  "Whether the weights are a LoRA adapter; if not, they are all parameters of the model.",
	"HotWeights.position": "Position of the job's newest event in the log when the job stored the weights.",
	"madeTime":            "Time at which the job stored the weights.",
	"swapTime":            "Time at which replicas began to serve the weights.",
	"hotLoadBucketType":   "Type of the bucket from which weights are loaded.",
	"hotLoadBucketUrl":    "URL of the bucket from which weights are loaded.",
}
