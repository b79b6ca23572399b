package rest

import (
	"maps"

	"anneal/api/request"
)

// fieldTexts describe fields. A key is the name of a field, or of a type and its field. Every field
// of the document has a description.
var fieldTexts = joined(commonTexts, pageTexts, accountTexts, modelTexts, datasetTexts, evaluatorTexts, jobTexts,
	progressTexts, rolloutTexts, shapeTexts, deploymentTexts, hotLoadTexts, nodeTexts, eventTexts, compatibleTexts,
	batchTexts, backupTexts, rebuildTexts, subscriptionTexts, usageTexts)

func joined[V any](tables ...map[string]V) map[string]V {
	all := map[string]V{}
	for _, table := range tables {
		maps.Copy(all, table)
	}
	return all
}

var commonTexts = map[string]string{
	"name": "The resource name, such as accounts/lumen-outdoor/datasets/support-chats. In an update it must equal " +
		"the name in the " +
		"path; a create ignores it.",
	"displayName": "A name for display.",
	"description": "A short description.",
	"createTime":  "Time of creation.",
	"updateTime":  "Time of the last change.",
	"deleteTime":  "Time of the soft deletion.",
	"purgeTime":   "Time at which the soft-deleted resource is deleted permanently.",
	"expireTime":  "Time at which the resource is deleted automatically.",
	"createdBy": "Email address of the API key that created the resource, or of its account if the key has none. " +
		"Without both, the resource name of the key.",
	"state":          "Lifecycle state.",
	"status":         "Result of the last operation on the resource.",
	"Status.code":    "Name of the canonical code; OK on success.",
	"Status.message": "What failed, or what the resource waits for.",
	"nextPageToken":  "Token of the next page; absent on the last page.",
	"totalSize":      "Number of items on all pages.",
	"region":         "Region of the nodes that train.",

	"Health.status":   "Always ok.",
	"Health.position": "Log position of the last event that responses reflect.",

	"error":                 "The error.",
	"request_id":            "ID of the request, which appears in the logs of the operator.",
	"code":                  "Reason of the error, for programs.",
	"message":               "What is wrong, and what to do.",
	"details":               "ErrorInfo has the reason for programs; BadRequest lists the invalid fields.",
	"@type":                 "Type of the entry: ErrorInfo or BadRequest.",
	"Violation.field":       "Path of the field, such as trainingConfig.epochs.",
	"Violation.description": "What is wrong with the field, and what to do.",
	"param":                 "The first invalid field; null when the error is not about a field.",
}

// pageTexts describe the items of list responses.
var pageTexts = map[string]string{
	"accounts":                    "The accounts of this page.",
	"apiKeys":                     "The API keys of this page.",
	"secrets":                     "The secrets of this page.",
	"models":                      "The models of this page.",
	"datasets":                    "The datasets of this page.",
	"evaluators":                  "The evaluators of this page.",
	"supervisedFineTuningJobs":    "The jobs of this page.",
	"dpoJobs":                     "The jobs of this page.",
	"reinforcementFineTuningJobs": "The jobs of this page.",
	"rlorTrainerJobs":             "The jobs of this page.",
	"deploymentShapes":            "The shapes of this page.",
	"deploymentShapeVersions":     "The versions of this page.",
	"deployments":                 "The deployments of this page.",
	"deployedModels":              "The loaded addons of this page.",
	"NodePage.nodes":              "The nodes of this page.",
	"events":                      "The events of this page.",
	"checkpoints":                 "The checkpoints of this page.",
	"rollouts":                    "The rollouts of this page.",
}

// accountTexts describe accounts, API keys, secrets, quotas and the digest.
var accountTexts = map[string]string{
	"lastUsedTime": "Time of the last use, to the minute; absent before the first use.",
	"account":      "The account.",
	"accountId":    "ID of the new account. The server generates one by default.",
	"apiKeyId":     "ID of the new key. The server generates one by default.",
	"email":        "Email address of the owner.",
	"APIKey.email": "Email address of the holder, which is the createdBy of what the key creates. The default is the " +
		"address of the account.",
	"accountType": "Type of the account.",
	"queueWeight": "Weight of the account, from 1 to 1000: the cluster is shared among the accounts that have jobs in " +
		"proportion to their weights.",
	"Account.jobAccelerators": "Accelerators of the account's jobs that the operator has set; the first row that " +
		"applies to a job decides. Absent when the table of all accounts applies, which is that of the account system.",
	"JobAccelerators.rows":                "The rows, in any order; without rows, the table is removed.",
	"JobAcceleratorRow.method":            "Method of training; every method by default.",
	"JobAcceleratorRow.maxParameterCount": "Maximum number of parameters of the base model; 0 for models of every size.",
	"JobAcceleratorRow.acceleratorType": "Device type. Default: the type with the most devices on the nodes that can " +
		"train the job.",
	"JobAcceleratorRow.acceleratorCount": "Number of devices on each node of the job; 0 means CPUs only.",

	"suspendState":            "Reason of the suspension; UNSUSPENDED when the account is not suspended.",
	"Suspension.suspendState": "Reason of the suspension.",
	"reason":                  "Reason as text; the status of the resource shows it.",
	"apiKey":                  "The API key.",
	"TrackerConfig.apiKey": "API key of the tracker, stored encrypted. Only the response to the create contains it. For " +
		"MLflow, a token or USER:PASSWORD.",
	"key": "Text of the API key. Only the response to the create contains it.",
	"role": "Role of the key. admin may send every request of its account; user may send every request except those for " +
		"keys and secrets; inference may only send inference requests; reader may only read the events of its account, " +
		"over HTTP and from NATS.",
	"prefix": "First characters of the key's text, which identify it.",
	"APIKey.natsUrl": "For a reader: URL of the NATS server with the streams EVENTS and USAGE of its account. Absent " +
		"when the server stores events in a NATS cluster.",
	"APIKey.natsUser":   "For a reader: NATS user name; the password is the key.",
	"APIKey.expireTime": "Time at which the key becomes invalid; never by default.",
	"keyName":           "Name of the environment variable that contains the value when evaluator code runs.",
	"Secret.value":      "The secret value, at most " + request.ByteSize(MaxSecret) + ".",
	"Secret.name":       "Resource name of the secret. In a create, the ID alone is accepted as well.",
	"position":          "Position in the log; 1 is the first event.",
	"eventId":           "ID of the event at the position.",
	"tables":            "Digests of the collections, by name.",
	"sha256":            "SHA-256 in hexadecimal.",
	"rows":              "Number of resources in the collection.",

	"quotas": "Quotas of the account: accelerators, deployments, guaranteed-accelerators, jobs, requests-per-minute and " +
		"storage-bytes.",
	"Quota.value": "The limit in force; absent without a limit.",
	"maxValue":    "The limit, or the number of guaranteed accelerators; null removes it.",
	"Quota.usage": "Current usage.",
}

// nodeTexts describe nodes and their allocations.
var nodeTexts = map[string]string{
	"seenTime":    "Time of the last heartbeat.",
	"used":        "Allocated resources.",
	"publicKey":   "Public NKey of the node's agent; empty before it enrolls and after its access is revoked.",
	"enrollTime":  "Time at which the agent enrolled with this key.",
	"revokeTime":  "Time at which the access was revoked.",
	"allocations": "Allocations of jobs and replicas on the node.",
	"Node.scheduling": "Whether the node gets new work: SCHEDULABLE, CORDONED, DRAINING while its work moves to other " +
		"nodes, or DRAINED when none is left.",
	"Node.cordon":   "Why the node gets no new work; absent when it gets new work.",
	"labels":        "Labels of the node, as its agent reports them.",
	"taints":        "Taints that keep work off the node.",
	"Taint.key":     "Key of the taint.",
	"Taint.value":   "Value of the taint.",
	"Taint.effect":  "NoSchedule: the node gets no new work that does not tolerate the taint.",
	"Untaint.key":   "Key of the taint to remove.",
	"nodeSelector":  "Labels that the nodes must have.",
	"tolerations":   "Taints that the nodes may have.",
	"Account.nodes": "Which nodes the work of the account may use; absent for all nodes without taints.",
	"Account.queueWeight": "Weight that the operator has set: the cluster is shared among the accounts that have " +
		"jobs in proportion to their weights. Absent for the weight 1.",
	"failedDevices":     "Devices that have failed, with the reason. They are not part of capacity.",
	"devices":           "State of the devices, as the agent reported it last.",
	"Device.type":       "Type of the device.",
	"Device.index":      "Index of the device in the machine.",
	"Device.allocation": "ID of the allocation that uses the device.",
	"Device.sharing":    "IDs of all allocations that share the device; absent if at most one uses it.",
	"Device.health": "HEALTHY, FAILED, or UNKNOWN when the agent does not read the state of the device or cannot read " +
		"it. A device whose health is unknown is used.",
	"temperatureC":        "Temperature in degrees Celsius; absent if unknown.",
	"utilizationPercent":  "Share of time in which the device computes, in percent; absent if unknown.",
	"memoryUsedMib":       "Memory in use in MiB; absent if unknown.",
	"Device.memoryMib":    "Memory in MiB; absent if unknown.",
	"FailedDevice.type":   "Type of the device.",
	"FailedDevice.index":  "Index of the device in the machine.",
	"FailedDevice.reason": "Why the device is not used.",
	"NodeCordon.reason":   "Reason that the operator gave.",
	"NodeCordon.time":     "Time of the cordon.",
	"NodeCordon.deadline": "Time at which the drain stops the work that is left; absent when the node is not drained.",
	"NodeCordon.drained":  "Time at which the drained node had no work any more.",
	"Drain.deadline": "Duration after which the work that is left is stopped, such as \"600s\"; at most 168h. " +
		"The default is 600s.",
	"Node.region": "Region of the node, as its agent reports it.",
	"pool":        "Work that the node runs: training, inference, or both when empty.",
	"capacity":    "Total resources.",
	"engines": "What the node can do, such as train, complete and score; and engine:NAME for each engine that is a " +
		"program of its own, such as engine:vllm.",
	"version":           "Version of the agent.",
	"cpuMilli":          "CPU in millicores; 1000 is one core.",
	"memoryMib":         "Memory in MiB.",
	"accelerators":      "Number of devices, by type.",
	"for":               "Resource name of the job or deployment that holds the allocation.",
	"replica":           "ID of the replica that holds the allocation.",
	"takes":             "Allocated resources.",
	"share":             "Part of the one device, which other work may share; absent for whole devices.",
	"DeviceShare.milli": "Thousandths of the device.",
	"DeviceShare.slot": "Number of the shared device, as the control plane counts those of the node; it is not the " +
		"index of the device.",
	"PlacementReason.score": "Score of the node. The less the allocation fragments the accelerators of the node, " +
		"and the more evenly it uses CPU, memory and accelerators, the higher is the score.",
	"PlacementReason.rank": "Rank of the node among those with the same type of accelerators. Among nodes with the same " +
		"score, the one with the lowest rank is chosen.",
	"PlacementReason.feasible":       "Number of nodes that had capacity.",
	"PlacementReason.deviceMilli":    "Thousandths of the shared device that other work had before; absent if none.",
	"PlacementReason.strategy":       "The placementStrategy of the deployment; absent for the default.",
	"PlacementReason.failureDomain":  "Region and zone of the node; absent if it has neither.",
	"PlacementReason.domainReplicas": "Number of replicas that the deployment had in this failure domain before.",
	"PlacementReason.nodeReplicas":   "Number of replicas that the deployment had on the node before.",
	"PlacementReason.fragmentationMilli": "Change of the node's fragmentation by the allocation, in thousandths of an " +
		"accelerator. The fragmentation is the part of the accelerators that no typical request can use.",
	"Allocation.attempt": "Attempt of the job that holds the allocation.",
	"Allocation.since": "Time of the reservation. The scheduler releases the reservation when the work does not start " +
		"in time.",

	"Cordon.reason":     "Reason as text; the field cordon of the node shows it.",
	"Drain.reason":      "Reason as text; the field cordon of the node shows it.",
	"Allocation.reason": "Why the node was chosen; absent for allocations of earlier versions.",
	"Allocation.id":     "ID of the allocation.",
}

// eventTexts describe events as CloudEvents.
var eventTexts = map[string]string{
	"specversion":     "Version of CloudEvents.",
	"subject":         "Resource name of the resource that changed.",
	"time":            "Time of the event.",
	"datacontenttype": "Media type of data.",
	"actor":           "API key, or component of the server, that caused the event.",
	"command":         "ID of the command that caused the event.",
	"cause":           "ID of the event that caused this event.",
	"correlation":     "ID of the request that the event belongs to.",
	"data":            "Payload; its fields depend on the type.",
}
