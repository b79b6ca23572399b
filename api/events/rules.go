package events

import (
	"anneal/api/wire"
	"anneal/eventlog/audit"
)

// rules constrains the values of fields of this package's wire types: see openapi.Documentation.
var rules = map[string]wire.Rule{
	"Event.specversion": wire.OneOf("1.0"),
	"Event.position":    {Pattern: wire.CountPattern},

	"AuditRecord.method":  {}, // HTTP method; rules for other fields named method do not apply
	"AuditRecord.kind":    wire.OneOf(audit.Kinds...),
	"AuditRecord.purpose": wire.OneOf(purposes()...),

	"ProofBundle.format":             wire.OneOf("anneal-proof/1"),
	"DisclosedEvent.position":        {Pattern: wire.CountPattern},
	"DisclosedEvent.accountSequence": {Pattern: wire.CountPattern},
	"GrowthStep.from":                {Pattern: wire.CountPattern},
	"GrowthStep.to":                  {Pattern: wire.CountPattern},
}

// typeTexts describes the wire types of this package in the API reference.
var typeTexts = map[string]string{
	"Event": "CloudEvent 1.0 in structured JSON, with its position in the log.",

	"AuditRecord": "Refused or failed request, login, or read of a secret by code. It is not part of the log.",

	"ProofBundle":    "Proof that the log contains an event. It can be verified with only the public key of the log.",
	"DisclosedEvent": "Event as it is stored, with the salts with which the commitments in its log entry can be verified.",
	"EventAttribute": "CloudEvents attribute of the event, as it is stored.",
	"GrowthStep":     "Proof that the later log begins with all events of the earlier log.",
}

// fieldTexts describes the fields of this package's wire types in the API reference.
var fieldTexts = map[string]string{
	"Event.source":       "Name of the installation that recorded the event.",
	"Event.attempt":      "Number of the job's attempt to which the event belongs; absent in other events.",
	"Event.id":           "ID of the event.",
	"Event.type":         "Type and version of the event, such as dataset.created.v1.",
	"Event.controlplane": "ID of the control plane that recorded the event; absent in events of earlier releases.",
	"Event.clientaddress": "IP address of the client whose request caused the event; absent in reactions to events, and " +
		"when the server does not record addresses.",
	"Event.state": "State of the resource after the event.",
	"Event.dataschema": "URI of the JSON Schema of the data. This server serves the schema at the path of " +
		"the URI, such as /schemas/dataset.created.v1.json.",
	"Event.traceparent":            "W3C trace context of the request that caused the event, if it had any.",
	"Event.tracestate":             "W3C trace state of the request that caused the event, if it had any.",
	"AuditRecordPage.auditRecords": "The audit records of this page.",

	"AuditRecord.time": "Time at which the request was received, or the secret was read.",
	"AuditRecord.id":   "ID of the audit record.",
	"AuditRecord.kind": "What happened: a request was refused (4xx) or failed (5xx), a login was accepted or refused, " +
		"code read a secret, or the control plane dropped records.",
	"AuditRecord.account": "Account of the caller or of the secret; absent if the caller was not authenticated.",
	"AuditRecord.actor": "Name of the API key, user, node or control plane that caused the record; users/NAME for a " +
		"user of the identity provider who may not use any account.",
	"AuditRecord.apiKey": "Name of the API key. In a record without account, the server did not verify the " +
		"key: the key claims this name.",
	"AuditRecord.clientAddress": "IP address of the client, or of the proxy between the client and the server.",
	"AuditRecord.method":        "HTTP method.",
	"AuditRecord.operation":     "ID of the operation, such as createDataset; absent if the path has no operation.",
	"AuditRecord.path":          "Path of the request without its query, at most 512 bytes.",
	"AuditRecord.status":        "HTTP status of the response.",
	"AuditRecord.reason":        "Reason of the error in the response, such as QUOTA_EXCEEDED.",
	"AuditRecord.requestId":     "X-Request-Id of the response.",
	"AuditRecord.traceParent":   "W3C trace context of the request, if it had any.",
	"AuditRecord.controlPlane":  "ID of the control plane that stored the record.",
	"AuditRecord.secret":        "Name of the resource that contains the secret value that was read.",
	"AuditRecord.reader":        "Name of the resource whose code received the secret value, such as a job.",
	"AuditRecord.purpose":       "What the code uses the secret value for.",
	"AuditRecord.node": "Name of the node that received the secret value; absent if the control plane " +
		"received it.",
	"AuditRecord.repeated": "Number of occurrences that this record counts: the server merges records of a client " +
		"that causes many equal ones, and counts dropped records. Absent if it is 1.",

	"ProofBundle.format": "Format of the bundle, always anneal-proof/1.",
	"ProofBundle.event":  "Event that the bundle proves.",
	"ProofBundle.growth": "Proof that the log has only grown since it had the size in the query parameter since.",
	"ProofBundle.proof":  "Inclusion proof and signed checkpoint in the form c2sp.org/tlog-proof@v1.",

	"DisclosedEvent.envelopeSalt": "Salt of the commitment to the event's subject, attributes, account sequence " +
		"and previous leaf.",
	"DisclosedEvent.accountSequence":   "Sequence number of the event among the events of its account, from 1.",
	"DisclosedEvent.previousLeaf":      "Leaf hash of the account's previous event; all zeros for the first event.",
	"DisclosedEvent.payload":           "Data of the event as they are stored; absent if they contain a secret.",
	"DisclosedEvent.payloadSalt":       "Salt of the commitment to the event's data.",
	"DisclosedEvent.payloadCommitment": "Commitment to the event's data; present if payload is absent.",

	"DisclosedEvent.attributes": "CloudEvents attributes of the event, in byte order of their names.",
	"EventAttribute.name":       "Name of the CloudEvents attribute.",
	"EventAttribute.value":      "Value of the attribute as it is stored.",
	"GrowthStep.from":           "Size of the earlier log, in events.",
	"GrowthStep.to":             "Size of the later log, in events.",
	"GrowthStep.fromRoot":       "Root hash of the earlier log.",
	"GrowthStep.toRoot":         "Root hash of the later log.",
	"GrowthStep.hashes":         "Hashes of the consistency proof (RFC 6962).",
}
