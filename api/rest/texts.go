package rest

import (
	"anneal/api/openapi"
	"anneal/api/request"
)

// fieldTexts describes the fields of this package's wire types in the API reference. A key is the
// name of a field, or of a type and its field, which takes precedence.
var fieldTexts = openapi.Joined(commonTexts, pageTexts, accountTexts, modelTexts, datasetTexts, evaluatorTexts,
	jobTexts,
	progressTexts, rolloutTexts, shapeTexts, deploymentTexts, hotLoadTexts, nodeTexts, eventTexts, compatibleTexts,
	batchTexts, backupTexts, rebuildTexts, subscriptionTexts, usageTexts, releaseTexts, trainingTexts)

var commonTexts = map[string]string{
	"name": "The resource name, such as accounts/lumen-outdoor/datasets/support-chats. In an update it must equal the " +
		"name in the path; a create ignores it.",
	"displayName": "A name for display; it need not be unique.",
	"description": "A description for display.",
	"createTime":  "Time at which the resource was created.",
	"updateTime":  "Time of the last change of the resource.",
	"deleteTime":  "Time at which the resource was soft-deleted.",
	"purgeTime":   "Time at which the soft-deleted resource is deleted permanently.",
	"expireTime":  "Time at which the resource is deleted automatically.",
	"createdBy": "Email address of the API key that created the resource or, if the key has none, of the key's " +
		"account. If neither has one, the resource name of the key.",
	"state":          "Lifecycle state of the resource, copy, export or rebuild.",
	"status":         "Result of the last operation: on the resource, or of the copy, export, backup or rebuild.",
	"Status.code":    "Name of the canonical code, such as INVALID_ARGUMENT; OK if the operation succeeded.",
	"Status.message": "Message that says what failed, or what the resource waits for.",
	"nextPageToken":  "Value of pageToken for the next page; absent on the last page.",
	"totalSize":      "Number of items on all pages.",
	"region":         "Region of the nodes that train.",

	"Health.status":   "Always ok.",
	"Health.position": "Position of the last log event that responses of the server reflect.",

	"error":      "Error of the request.",
	"request_id": "ID of the request, by which the operator finds it in the server's log.",
	"code":       "Machine-readable reason of the error, such as QUOTA_EXCEEDED.",
	"message":    "Message that says what failed and what to do.",
	"details": "An ErrorInfo with the machine-readable reason and, if fields are invalid, a BadRequest " +
		"that lists them.",
	"@type":                 "Type of the entry: ErrorInfo or BadRequest.",
	"Violation.field":       "Path of the field, such as trainingConfig.epochs.",
	"Violation.description": "Rule that the field violates, and what to do.",
	"param":                 "Path of the first invalid field; null if the error is not about a field.",
}

// pageTexts describes the fields of list responses that contain the items of a page.
var pageTexts = map[string]string{
	"accounts":                    "The accounts of this page.",
	"apiKeys":                     "The API keys of this page.",
	"secrets":                     "The secrets of this page.",
	"models":                      "The models of this page.",
	"datasets":                    "The datasets of this page.",
	"evaluators":                  "The evaluators of this page.",
	"supervisedFineTuningJobs":    "The supervised fine-tuning jobs of this page.",
	"dpoJobs":                     "The DPO jobs of this page.",
	"reinforcementFineTuningJobs": "The reinforcement fine-tuning jobs of this page.",
	"rlorTrainerJobs":             "The reinforcement trainer jobs of this page.",
	"deploymentShapes":            "The deployment shapes of this page.",
	"deploymentShapeVersions":     "The versions of deployment shapes of this page.",
	"deployments":                 "The deployments of this page.",
	"deployedModels":              "The loaded addons of this page.",
	"NodePage.nodes":              "The nodes of this page.",
	"events":                      "The events of this page.",
	"checkpoints":                 "The checkpoints of this page.",
	"rollouts":                    "The rollouts of this page.",
}

// accountTexts describes accounts, API keys, secrets, quotas and the digest.
var accountTexts = map[string]string{
	"lastUsedTime": "Time at which the API key was last used, to the minute; absent before its first use.",
	"account":      "Account to create, or that was created.",
	"accountId":    "ID of the new account. The server generates one by default.",
	"apiKeyId":     "ID of the new API key. The server generates one by default.",
	"email":        "Email address of the account's owner.",
	"APIKey.email": "Email address of the key's holder, which resources that the key creates show as createdBy. The " +
		"default is the address of the account.",
	"accountType": "Type of the account.",
	"queueWeight": "Weight of the account in the queue of jobs, from 1 to 1000: accounts with waiting or running jobs " +
		"share the cluster in proportion to their weights.",
	"Account.jobAccelerators": "Table that decides how many accelerators the account's jobs get, as the operator has " +
		"set it; the first row that applies to a job decides. Absent if the account has no table: then that of the " +
		"account system applies.",
	"JobAccelerators.rows":     "The rows of the table, in any order. Without rows, the table is removed.",
	"JobAcceleratorRow.method": "Training method of the jobs to which the row applies; absent for all methods.",
	"JobAcceleratorRow.maxParameterCount": "The row applies to jobs whose base model has at most this number of " +
		"parameters; 0 means any number.",
	"JobAcceleratorRow.acceleratorType": "Type of the accelerators that the job gets. The default is the type with " +
		"the largest number of accelerators on the nodes that can train the job.",
	"JobAcceleratorRow.acceleratorCount": "Number of accelerators on each node of the job; 0 means that the job " +
		"trains on CPUs only.",

	"suspendState":            "Reason why the account is suspended; UNSUSPENDED if it is not.",
	"Suspension.suspendState": "Reason for the suspension.",
	"reason":                  "Reason as free text, which the status of the resource then shows.",
	"apiKey":                  "API key to create, or that was created.",
	"TrackerConfig.apiKey": "API key for the tracker; for MLflow, a token or USER:PASSWORD. The server stores it " +
		"encrypted, and only the response to the create contains it.",
	"key": "The API key itself, which requests send. Only the response to the create contains it.",
	"role": "Role of the key. admin may send all requests of its account; user may send all requests except those for " +
		"API keys and secrets; inference may only send inference requests; reader may only read the events of its " +
		"account, over HTTP and from NATS.",
	"APIKey.priority": "Highest priority of the key's inference requests: interactive, which is the default, or batch. " +
		"Batch requests give way to interactive ones of the same deployment. The header " + request.PriorityHeader +
		" lowers the priority of one request.",
	"prefix": "First characters of the key, by which its holder can recognize it.",
	"APIKey.natsUrl": "For a key with the role reader: URL of the NATS server with the streams EVENTS and USAGE of " +
		"its account. Absent if the server stores events in a NATS cluster.",
	"APIKey.natsUser":   "For a key with the role reader: its user name at the NATS server. The password is the key.",
	"APIKey.expireTime": "Time at which the key becomes invalid; absent if it never does.",
	"keyName":           "Name of the environment variable in which evaluator code gets the secret's value.",
	"Secret.value":      "The secret value, at most " + request.ByteSize(MaxSecret) + ".",
	"Secret.name":       "Resource name of the secret. A create also accepts the ID alone.",
	"position":          "Position in the log, from 1.",
	"eventId":           "ID of the event at the log position.",
	"tables":            "Digests of the collections, by name of the collection.",
	"sha256":            "SHA-256 of the resources that the digest covers, in hexadecimal digits.",
	"rows":              "Number of resources in the collection.",

	"quotas": "Quotas of the account: accelerators, deployments, guaranteed-accelerators, jobs, requests-per-minute and " +
		"storage-bytes.",
	"Quota.value": "Limit that applies; absent if there is none.",
	"maxValue":    "Limit of the quota or, for guaranteed-accelerators, the guaranteed number; null removes it.",
	"Quota.usage": "Current usage of the account that counts against the limit.",
}

// nodeTexts describes nodes and their allocations.
var nodeTexts = map[string]string{
	"seenTime":    "Time of the node's last heartbeat.",
	"used":        "Resources of the node that allocations hold.",
	"publicKey":   "Public NKey of the node's agent; empty before the agent enrolls and after its access is revoked.",
	"enrollTime":  "Time at which the node's agent enrolled with its key.",
	"revokeTime":  "Time at which the node's access was revoked.",
	"allocations": "Allocations of the node's resources to jobs and replicas.",
	"Node.scheduling": "Whether the node gets new work: SCHEDULABLE; CORDONED; DRAINING, while its work moves to " +
		"other nodes; or DRAINED, when none is left.",
	"Node.cordon":  "Why and since when the node gets no new work; absent if it gets new work.",
	"labels":       "Labels of the node, as its agent reports them.",
	"taints":       "Taints of the node, which keep work of accounts without a toleration off the node.",
	"Taint.key":    "Key of the taint.",
	"Taint.value":  "Value of the taint.",
	"Taint.effect": "Always NoSchedule: the node gets no new work of accounts that do not tolerate the taint.",
	"Untaint.key":  "Key of the taint to remove.",
	"nodeSelector": "Labels that a node must have to run the account's work.",
	"tolerations":  "Taints that a node may have to run the account's work.",
	"Account.nodes": "Which nodes the account's jobs and replicas may use; absent if they may use all nodes without " +
		"taints.",
	"Account.queueWeight": "Weight of the account in the queue of jobs, as the operator has set it: accounts with " +
		"waiting or running jobs share the cluster in proportion to their weights. Absent if it is 1.",
	"failedDevices":     "Accelerators that have failed, with the reason. The node's capacity does not include them.",
	"devices":           "State of the accelerators, as the agent last reported it.",
	"Device.type":       "Type of the accelerator.",
	"Device.index":      "Index of the accelerator in the machine.",
	"Device.allocation": "ID of the allocation that uses the accelerator; absent if none does.",
	"Device.sharing":    "IDs of all allocations that share the accelerator; absent if at most one uses it.",
	"Device.health": "HEALTHY, FAILED, or UNKNOWN if the agent cannot read the accelerator's state. Accelerators in " +
		"the state UNKNOWN are used.",
	"temperatureC":        "Temperature of the accelerator in degrees Celsius; absent if unknown.",
	"utilizationPercent":  "Percentage of time in which the accelerator computes; absent if unknown.",
	"memoryUsedMib":       "Memory of the accelerator that is in use, in MiB; absent if unknown.",
	"Device.memoryMib":    "Memory of the accelerator, in MiB; absent if unknown.",
	"FailedDevice.type":   "Type of the accelerator.",
	"FailedDevice.index":  "Index of the accelerator in the machine.",
	"FailedDevice.reason": "Why the accelerator is not used.",
	"NodeCordon.reason":   "Reason for the cordon or drain that the operator gave.",
	"NodeCordon.time":     "Time at which the node was cordoned.",
	"NodeCordon.deadline": "Time at which the drain stops the jobs and replicas that are still on the node; absent if " +
		"the node is only cordoned.",
	"NodeCordon.drained": "Time at which the drained node had no more jobs and replicas.",
	"Drain.deadline": "Duration after which jobs and replicas that are still on the node are stopped, such as " +
		"\"600s\" (the default); at most 168h.",
	"Node.region": "Region of the node, as its agent reports it.",
	"pool":        "Kind of work that the node runs: training or inference; empty for both.",
	"capacity":    "Resources of the node.",
	"engines": "Abilities of the node's engines, such as train, complete and score, and engine:NAME for each engine " +
		"that is a separate program, such as engine:vllm.",
	"version":      "Version of the node's agent.",
	"cpuMilli":     "CPU in millicores; 1000 are one core.",
	"memoryMib":    "Memory in MiB.",
	"accelerators": "Number of accelerators, by type.",
	"for":          "Resource name of the job or deployment that holds the allocation.",
	"replica":      "ID of the replica that holds the allocation; absent if a job does.",
	"takes":        "Resources that the allocation holds.",
	"share": "Part of a single accelerator that the allocation holds, while other work may hold the rest; " +
		"absent for whole accelerators.",
	"DeviceShare.milli": "Size of the part, in thousandths of the accelerator.",
	"DeviceShare.slot": "Number by which the control plane identifies the shared accelerator on its node; it is not " +
		"the index in the machine.",
	"PlacementReason.score": "Score of the node. It is higher the less the allocation fragments the node's " +
		"accelerators, and the more evenly it uses CPU, memory and accelerators.",
	"PlacementReason.rank": "Rank of the node among the nodes with the same accelerator type. Among nodes with the " +
		"same score, the scheduler chooses the lowest rank.",
	"PlacementReason.feasible":       "Number of nodes that had enough free capacity.",
	"PlacementReason.deviceMilli":    "Thousandths of the shared accelerator that other work held before; absent if none.",
	"PlacementReason.strategy":       "The deployment's placementStrategy; absent if it is the default.",
	"PlacementReason.failureDomain":  "Failure domain (region and zone) of the node; absent if it has neither.",
	"PlacementReason.domainReplicas": "Number of replicas that the deployment already had in this failure domain.",
	"PlacementReason.nodeReplicas":   "Number of replicas that the deployment already had on the node.",
	"PlacementReason.fragmentationMilli": "By how much the allocation changed the node's fragmentation, in " +
		"thousandths of an accelerator. Fragmentation is the part of the accelerators that no typical request can use.",
	"Allocation.attempt": "Number of the job's attempt that holds the allocation.",
	"Allocation.since": "Time at which the allocation was reserved. The scheduler releases it if the work does not " +
		"start in time.",

	"Cordon.reason":     "Reason as free text, which the field cordon of the node shows.",
	"Drain.reason":      "Reason as free text, which the field cordon of the node shows.",
	"Allocation.reason": "Why the scheduler chose the node; absent for allocations of earlier releases.",
	"Allocation.id":     "ID of the allocation.",
}

// eventTexts describes the fields of events, which are CloudEvents.
var eventTexts = map[string]string{
	"specversion":     "Version of the CloudEvents specification.",
	"subject":         "Resource name of the resource that changed.",
	"time":            "Time at which the event was decided.",
	"datacontenttype": "Media type of the field data.",
	"actor":           "Name of the API key, or of the component of the server, that caused the event.",
	"command":         "ID of the command whose result is the event.",
	"cause":           "ID of the event to which this event is a reaction.",
	"correlation":     "ID of the request that started the chain of events to which this event belongs.",
	"data":            "Data of the event. Its fields depend on the type of the event.",
}
