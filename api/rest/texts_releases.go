package rest

import (
	"anneal/api/wire"
	"anneal/domain"
)

// releaseRules constrains the values of fields of releases.
var releaseRules = map[string]wire.Rule{
	"mode":                    wire.OneOf(domain.ReleaseCanary, domain.ReleaseShadow),
	"selection":               wire.OneOf(domain.SelectRequests, domain.SelectKeys),
	"promotion":               wire.OneOf(domain.PromoteAutomatic, domain.PromoteManual),
	"ReleaseSpec.steps":       {MaxItems: domain.MaxReleaseSteps},
	"TrafficSplit.steps":      {MaxItems: domain.MaxReleaseSteps},
	"maxErrorIncreasePercent": wire.Between(0, 100),
	"maxLatencyPercent":       wire.Between(100, domain.MaxLatencyPercent),
	"minSamples":              wire.Between(domain.MinReleaseSamples, domain.MaxReleaseSamples),
	"ReleaseReason.reason":    {MaxLength: maxReleaseReason},
	"TrafficSplit.state": wire.OneOf(domain.ReleaseRunning, domain.ReleaseWaiting, domain.ReleasePromotedState,
		domain.ReleaseRolledBackState),
}

const (
	candidateText = "Resource name of the candidate, to which the traffic moves: another deployment of the account " +
		"that serves a text model."
	stepsText = "Percentages of the requests for the candidate, in the order of the steps, each higher than the one " +
		"before. The default is 1, 5, 25, 50."
)

// releaseTexts describes the fields of releases in the API reference.
var releaseTexts = map[string]string{
	"trafficSplit":           "The newest release of the deployment, which moves its traffic to another deployment.",
	"ReleaseSpec.candidate":  candidateText,
	"TrafficSplit.candidate": candidateText,
	"mode": "CANARY (the default): the candidate answers its share of the requests. SHADOW: its share of the requests " +
		"is mirrored to the candidate, whose answers are discarded.",
	"selection": "Which requests the candidate gets. REQUEST (the default): each request on its own. KEY (sticky): all " +
		"requests of a session or, without one, of an API key.",
	"ReleaseSpec.steps":  stepsText,
	"TrafficSplit.steps": stepsText,
	"promotion": "AUTOMATIC (the default): after the last step, the candidate gets all requests. MANUAL: the release " +
		"waits for promoteRelease.",
	"maxErrorIncreasePercent": "Maximum error rate of the candidate minus that of the stable deployment, in " +
		"percentage points. The default is 1.",
	"maxLatencyPercent": "Maximum time to the first token, and time per token, of the candidate, in percent of those " +
		"of the stable deployment, compared in bins of 9 %. The default is 125.",
	"minSamples": "Number of requests to each of the two deployments that a step needs. The default is 50.",
	"maxStepDuration": "How long a step may take, from 60s to 2592000s; then the release is rolled back. The default " +
		"is 86400s.",
	"TrafficSplit.number": "Number of the release of this deployment, from 1.",
	"TrafficSplit.state": "RUNNING; WAITING for promoteRelease; PROMOTED: all requests go to the candidate; or " +
		"ROLLED_BACK: none do.",
	"TrafficSplit.step":      "Number of the current step, from 1.",
	"TrafficSplit.percent":   "Percentage of the requests that the candidate gets at present.",
	"TrafficSplit.reason":    "Why the release has its state and step.",
	"TrafficSplit.startTime": "Time at which the release was started.",
	"stepTime":               "Time at which the state or the step last changed.",
	"TrafficSplit.figures": "What the two deployments did in the current step or, if the release has ended, in the " +
		"last step.",
	"stable":                 "Requests to the stable deployment.",
	"SplitFigures.candidate": "Requests to the candidate, or mirrored to it.",
	"RequestFigures.requests": "Number of requests that succeeded, failed by a fault of the deployment, or whose client " +
		"has disconnected before.",
	"RequestFigures.errors": "Number of requests that failed by a fault of the deployment.",
	"firstTokenP50":         "Median time to the first token in seconds, rounded down by at most 9 %.",
	"firstTokenP90":         "90th percentile of the time to the first token in seconds, rounded down by at most 9 %.",
	"perTokenP50":           "Median time per further token in seconds, rounded down by at most 9 %.",
	"perTokenP90":           "90th percentile of the time per further token in seconds, rounded down by at most 9 %.",
	"ReleaseReason.reason":  "Why the release is promoted or rolled back, for the events.",
}

// releaseTypeTexts describes the types of releases in the API reference.
var releaseTypeTexts = map[string]string{
	"ReleaseSpec":    "Settings of a release.",
	"TrafficSplit":   "Release of a deployment: its settings and its progress.",
	"SplitFigures":   "What the stable deployment and the candidate of a release did in a step.",
	"RequestFigures": "Numbers of requests to a deployment, and its latencies.",
	"ReleaseReason":  "Reason for the end of a release.",
}
