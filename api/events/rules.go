package events

import (
	"anneal/api/wire"
	"anneal/eventlog/audit"
)

// rules constrain the fields of this package's wire types: see openapi.Documentation.
var rules = map[string]wire.Rule{
	"Event.specversion": wire.OneOf("1.0"),
	"Event.position":    {Pattern: wire.CountPattern},

	"AuditRecord.method":  {}, // of HTTP, unlike other fields of this name
	"AuditRecord.kind":    wire.OneOf(audit.Kinds...),
	"AuditRecord.purpose": wire.OneOf(purposes()...),

	"ProofBundle.format":             wire.OneOf("anneal-proof/1"),
	"DisclosedEvent.position":        {Pattern: wire.CountPattern},
	"DisclosedEvent.accountSequence": {Pattern: wire.CountPattern},
	"GrowthStep.from":                {Pattern: wire.CountPattern},
	"GrowthStep.to":                  {Pattern: wire.CountPattern},
}

// typeTexts describe the types of this package.
var typeTexts = map[string]string{
	"Event": "CloudEvent 1.0 in structured JSON, with its position in the log.",

	"AuditRecord": "Refused or failed request, login, or read of a secret by code. It is not part of the log.",

	"ProofBundle":    "Proof that the log has an event, which needs only the public key of the log to be verified.",
	"DisclosedEvent": "Event as it is stored, with the salts that open the commitments of its entry in the log.",
	"EventAttribute": "Attribute of the event's CloudEvents envelope, as it is stored.",
	"GrowthStep":     "Proof that the log of one size begins with the log of an earlier size.",
}

// fieldTexts describe the fields of this package's wire types.
var fieldTexts = map[string]string{
	"Event.source":       "Installation that recorded the event.",
	"Event.attempt":      "Number of the attempt of the job, for an event that belongs to one.",
	"Event.id":           "ID of the event.",
	"Event.type":         "Type and version of the event, such as dataset.created.v1.",
	"Event.controlplane": "ID of the control plane that decided the event; absent in events of earlier versions.",
	"Event.clientaddress": "IP address of the client whose request caused the event; absent in reactions to events, and " +
		"when the server does not record addresses.",
	"Event.state": "State of the resource after the event.",
	"Event.dataschema": "URI of the JSON Schema of the data. Its path, such as /schemas/dataset.created.v1.json, is " +
		"that of the schema on this server.",
	"Event.traceparent":            "W3C trace context of the request that caused the event, if it had any.",
	"Event.tracestate":             "W3C trace state of the request that caused the event, if it had any.",
	"AuditRecordPage.auditRecords": "The audit records of this page.",

	"AuditRecord.id": "ID of the record.",
	"AuditRecord.kind": "What happened: a request was refused (4xx) or failed (5xx), a login was accepted or refused, " +
		"code read a secret, or the control plane dropped records.",
	"AuditRecord.account": "Account of the caller or of the secret; absent when the caller was not authenticated.",
	"AuditRecord.actor":   "API key, node or control plane that acted.",
	"AuditRecord.apiKey": "Name of the API key. In a record without account, the key only claims this name: the server " +
		"has not verified it.",
	"AuditRecord.clientAddress": "IP address of the client, or of the proxy through which it is connected.",
	"AuditRecord.method":        "HTTP method.",
	"AuditRecord.operation":     "ID of the operation; absent for a path without one.",
	"AuditRecord.path":          "Path of the request without its query, at most 512 bytes.",
	"AuditRecord.status":        "HTTP status of the response.",
	"AuditRecord.reason":        "Reason of the error, as in the response.",
	"AuditRecord.requestId":     "X-Request-Id of the response.",
	"AuditRecord.traceParent":   "W3C trace context of the request, if it had any.",
	"AuditRecord.controlPlane":  "ID of the control plane that recorded it.",
	"AuditRecord.secret":        "Resource that has the value that was read.",
	"AuditRecord.reader":        "Resource whose code got the value, such as a job.",
	"AuditRecord.purpose":       "What the code does with the value.",
	"AuditRecord.node":          "Node that got the value; absent for the control plane.",
	"AuditRecord.repeated": "Number of events that the record represents, because one client caused too many; " +
		"absent for one.",

	"ProofBundle.event":  "Event that is proven.",
	"ProofBundle.growth": "Proof that the log only grew since the size in the request.",
	"ProofBundle.proof":  "Inclusion proof and signed checkpoint in the form c2sp.org/tlog-proof@v1.",

	"DisclosedEvent.envelopeSalt":      "Salt of the commitment to subject, attributes, sequence and previous leaf.",
	"DisclosedEvent.accountSequence":   "Number of the event among those of its account, from 1.",
	"DisclosedEvent.previousLeaf":      "Leaf hash of the account's previous event; zero for the first.",
	"DisclosedEvent.payload":           "Data of the event, as stored; absent when they contain a secret.",
	"DisclosedEvent.payloadSalt":       "Salt of the commitment to the data.",
	"DisclosedEvent.payloadCommitment": "Commitment to the data; present when the data are absent.",

	"DisclosedEvent.attributes": "Attributes of the event, in byte order of their names.",
	"EventAttribute.value":      "Value of the attribute, as stored.",
	"GrowthStep.from":           "Size of the earlier log.",
	"GrowthStep.to":             "Size of the later log.",
	"GrowthStep.fromRoot":       "Root hash of the earlier log.",
	"GrowthStep.toRoot":         "Root hash of the later log.",
	"GrowthStep.hashes":         "Consistency proof by RFC 6962.",
}
