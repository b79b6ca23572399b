package train

import (
	"encoding/json"
	"math"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// losses are the supported losses of each method. The first one is the default.
var losses = map[string][]string{
	engines.Supervised:    {""},
	engines.DPO:           {domain.LossDPO, domain.LossORPO},
	engines.Reinforcement: {domain.LossGRPO, domain.LossDAPO, domain.LossGSPO},
	engines.RLOR:          {domain.LossGRPO, domain.LossDAPO, domain.LossGSPO},
}

// Clipping ranges of the ratio between the probabilities of the current policy and of the policy
// that generated the response. The range of GSPO is for the geometric mean over the tokens of a
// response.
const (
	clipLow      = 0.8
	clipHigh     = 1.2
	clipHighDAPO = 1.28
	clipLowGSPO  = 1 - 3e-4 // both limits of GSPO are from Zheng et al. 2025, section 5.1
	clipHighGSPO = 1 + 4e-4
	// maxStaleRatio is clipping.truncate of trainings on responses of earlier policies.
	maxStaleRatio = 2
)

// resolveLoss validates the loss that is given for a method, and returns it with defaults for
// missing fields. It adds violations to v.
func resolveLoss(v *domain.Violations, method string, given *domain.LossConfig) *domain.LossConfig {
	known := losses[method]
	if method == engines.Supervised {
		v.Require(given == nil, "lossConfig", "is not supported for supervised training, which uses the likelihood: omit it")
		return nil
	}
	full := domain.LossConfig{}
	if given != nil {
		full = *given
	}
	if full.Method == "" || full.Method == domain.LossUnspecified {
		full.Method = known[0]
	}
	if !slices.Contains(known, full.Method) {
		v.Add("lossConfig.method", "%q is not supported for this job: %s", full.Method, domain.OneOfRule(full.Method, known))
	}
	positive := func(field string, value float64) {
		v.Require(finite(value) && value >= 0, field, "must be 0 or more, is %g", value)
	}
	switch full.Method {
	case domain.LossDPO:
		full.DPO = orNew(full.DPO)
		positive("lossConfig.dpo.beta", full.DPO.Beta)
		fill(&full.DPO.Beta, domain.DefaultDPOBeta)
	case domain.LossORPO:
		full.ORPO = orNew(full.ORPO)
		positive("lossConfig.orpo.lambda", full.ORPO.Lambda)
		fill(&full.ORPO.Lambda, domain.DefaultORPOLambda)
	case domain.LossGRPO:
		if full.KLBeta == nil {
			beta := defaultKLBeta
			full.KLBeta = &beta
		}
		positive("lossConfig.klBeta", *full.KLBeta)
	}
	return &full
}

// orNew returns a copy of given; a zero value if given is nil.
func orNew[T any](given *T) *T {
	made := new(T)
	if given != nil {
		*made = *given
	}
	return made
}

// objectiveOf returns the objective of a loss with defaults; likelihood if loss is nil. stale
// reports whether responses of earlier policies are trained on.
func objectiveOf(loss *domain.LossConfig, stale bool) objective {
	if loss == nil {
		return likelihood{}
	}
	truncate := 0.0
	if stale {
		truncate = maxStaleRatio
	}
	switch loss.Method {
	case domain.LossDPO:
		return dpo{loss.DPO.Beta}
	case domain.LossORPO:
		return orpo{loss.ORPO.Lambda}
	case domain.LossDAPO:
		return dapo{clipping{clipLow, clipHighDAPO, truncate}}
	case domain.LossGSPO:
		return gspo{clipping{clipLowGSPO, clipHighGSPO, truncate}}
	}
	return grpo{clipping{clipLow, clipHigh, truncate}, *loss.KLBeta}
}

// resolveRollouts validates the settings of rollouts, and returns them with defaults for missing
// fields. It adds violations to v.
func resolveRollouts(v *domain.Violations, given *engines.Rollouts) *engines.Rollouts {
	full := orNew(given)
	if full.Temperature == nil {
		temperature := domain.DefaultTemperature
		full.Temperature = &temperature
	}
	fill(&full.ResponseCandidatesCount, domain.DefaultCandidates)
	fill(&full.MaxOutputTokens, defaultOutput)
	fill(&full.ChunkSize, domain.DefaultChunkSize)
	fill(&full.MaxConcurrent, defaultRollouts)
	fill(&full.MaxConcurrentEvaluations, defaultEvaluations)
	t := *full.Temperature
	v.Require(finite(t) && t > 0 && t <= 2, "inferenceParameters.temperature", "must be above 0 and at most 2, is %g", t)
	v.Require(full.TopP >= 0 && full.TopP <= 1, "inferenceParameters.topP", "must be 0 to 1, is %g", full.TopP)
	v.Require(full.TopK >= 0, "inferenceParameters.topK", "must not be negative, is %d; 0 means no limit", full.TopK)
	v.Require(full.MaxOutputTokens > 0, "inferenceParameters.maxOutputTokens",
		"must not be negative, is %d; 0 selects the default",
		full.MaxOutputTokens)
	n := full.ResponseCandidatesCount
	v.Require(n >= 2 && n <= domain.MaxCandidates, "inferenceParameters.responseCandidatesCount", "must be 2 to %d, is %d",
		domain.MaxCandidates, n)
	v.Require(full.ChunkSize > 0 && full.ChunkSize <= domain.MaxChunkSize, "chunkSize", "must be 1 to %d, is %d",
		domain.MaxChunkSize, full.ChunkSize)
	v.Require(full.MaxConcurrent > 0, "maxConcurrentRollouts", "must not be negative, is %d; 0 selects the default",
		full.MaxConcurrent)
	v.Require(full.MaxReplicas >= 0, "maxInferenceReplicaCount", "must not be negative, is %d; 0 stands for 1",
		full.MaxReplicas)
	v.Require(full.MaxConcurrentEvaluations > 0, "maxConcurrentEvaluations",
		"must not be negative, is %d; 0 selects the default",
		full.MaxConcurrentEvaluations)
	v.Require(full.MaxStaleness >= 0 && full.MaxStaleness <= domain.MaxStaleness, "maxStaleness", "must be 0 to %d, is %d",
		domain.MaxStaleness, full.MaxStaleness)
	more, err := parseExtra(full.ExtraBody)
	v.Require(err == nil, "inferenceParameters.extraBody",
		"may only set the numbers min_p, typical_p, frequency_penalty, presence_penalty and repetition_penalty: %v", err)
	v.Require(err != nil || more.allowed(), "inferenceParameters.extraBody",
		"has a value out of range: min_p and typical_p take 0 to 1; frequency_penalty and presence_penalty "+
			"take -2 to 2; repetition_penalty takes 0.001 to 2")
	return full
}

// extra has the supported fields of InferenceParameters.ExtraBody, a JSON object.
type extra struct {
	MinP              float64 `json:"min_p"`
	TypicalP          float64 `json:"typical_p"`
	FrequencyPenalty  float64 `json:"frequency_penalty"`
	PresencePenalty   float64 `json:"presence_penalty"`
	RepetitionPenalty float64 `json:"repetition_penalty"`
}

// allowed reports whether the values are in the ranges of the sampler.
func (e extra) allowed() bool {
	share := func(p float64) bool { return p >= 0 && p <= 1 }
	return share(e.MinP) && share(e.TypicalP) && math.Abs(e.FrequencyPenalty) <= 2 && math.Abs(e.PresencePenalty) <= 2 &&
		(e.RepetitionPenalty == 0 || e.RepetitionPenalty >= 0.001 && e.RepetitionPenalty <= 2)
}

func parseExtra(body string) (one extra, err error) {
	if strings.TrimSpace(body) == "" {
		return one, nil
	}
	decoder := json.NewDecoder(strings.NewReader(body))
	decoder.DisallowUnknownFields()
	return one, decoder.Decode(&one)
}
