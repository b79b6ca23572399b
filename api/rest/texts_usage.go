package rest

import "anneal/api/wire"

// usageRules constrain the values of fields of usage.
var usageRules = map[string]wire.Rule{
	"UsageRow.requests":           {Pattern: wire.CountPattern},
	"UsageRow.promptTokens":       {Pattern: wire.CountPattern},
	"UsageRow.cachedPromptTokens": {Pattern: wire.CountPattern},
	"UsageRow.completionTokens":   {Pattern: wire.CountPattern},
}

// usageTexts describe the fields of usage.
var usageTexts = map[string]string{
	"UsageRow.startTime": "Start of the hour or day (UTC), or of the whole period.",
	"UsageRow.endTime":   "End of the hour or day, or of the whole period.",
	"UsageRow.account":   "Account of the API key, or of the job or deployment; only with groupBy account.",
	"UsageRow.apiKey":    "API key of the requests; only with groupBy apiKey.",
	"UsageRow.model":     "Model as named in the requests; only with groupBy model.",
	"UsageRow.deployment": "Deployment that processed the requests or has the accelerators; only with groupBy " +
		"deployment.",
	"UsageRow.job":                "Job that has the accelerators; only with groupBy job.",
	"UsageRow.acceleratorType":    "Type of the accelerators; only with groupBy acceleratorType.",
	"UsageRow.requests":           "Requests to which a model responded, completely or partly.",
	"UsageRow.promptTokens":       "Tokens of prompts, including cached ones.",
	"UsageRow.cachedPromptTokens": "Tokens of prompts that were not computed again.",
	"UsageRow.completionTokens":   "Tokens of completions.",
	"UsageRow.audioSeconds":       "Seconds of recordings. Those of each request are rounded to microseconds.",
	"UsageRow.acceleratorSeconds": "Seconds for which accelerators were allocated, multiplied by their number.",
	"UsageRow.complete": "Whether the period has ended and its usage is rolled up. Usage whose record arrives later " +
		"is added to a complete row, too.",
}

// usageTypeTexts describe the types of usage.
var usageTypeTexts = map[string]string{
	"UsageRow": "Usage of one group in a period: see the parameter groupBy.",
}
