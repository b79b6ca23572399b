package rest

import "anneal/api/wire"

// usageRules constrains the values of fields of usage.
var usageRules = map[string]wire.Rule{
	"UsageRow.requests":           {Pattern: wire.CountPattern},
	"UsageRow.promptTokens":       {Pattern: wire.CountPattern},
	"UsageRow.cachedPromptTokens": {Pattern: wire.CountPattern},
	"UsageRow.completionTokens":   {Pattern: wire.CountPattern},
}

// usageTexts describes the fields of usage in the API reference.
var usageTexts = map[string]string{
	"UsageRowPage.usage": "The rows of usage of this page.",
	"UsageRow.startTime": "Start (UTC) of the hour or day to which the row belongs, or of the whole period " +
		"of the request.",
	"UsageRow.endTime": "End (UTC) of the hour or day to which the row belongs, or of the whole period of " +
		"the request.",
	"UsageRow.account": "Account of the API key, job or deployment; present if groupBy contains account.",
	"UsageRow.apiKey":  "API key that sent the requests; present if groupBy contains apiKey.",
	"UsageRow.model":   "Model as it was named in the requests; present if groupBy contains model.",
	"UsageRow.deployment": "Deployment that processed the requests or held the accelerators; present if " +
		"groupBy contains deployment.",
	"UsageRow.job":                "Job that held the accelerators; present if groupBy contains job.",
	"UsageRow.acceleratorType":    "Type of the accelerators; present if groupBy contains acceleratorType.",
	"UsageRow.requests":           "Number of requests to which a model responded, completely or partly.",
	"UsageRow.promptTokens":       "Number of prompt tokens, including cached ones.",
	"UsageRow.cachedPromptTokens": "Number of prompt tokens that were found in the prefix cache.",
	"UsageRow.completionTokens":   "Number of completion tokens.",
	"UsageRow.audioSeconds": "Total length of the transcribed recordings in seconds. The length of each is " +
		"rounded to microseconds.",
	"UsageRow.acceleratorSeconds": "Accelerator-seconds: the seconds for which each accelerator was allocated, added up.",
	"UsageRow.complete": "Whether the period has ended and its usage is recorded as events in the log. " +
		"Usage that is reported later is still added to a complete row.",
}

// usageTypeTexts describes the wire types of usage in the API reference.
var usageTypeTexts = map[string]string{
	"UsageRow": "Usage of one group in one period; the query parameter groupBy defines the groups.",
}
