package domain

import "encoding/json"

// BlobStoreConfig holds the credentials with which a job accesses a blob store.
type BlobStoreConfig struct {
	CredentialsSecret       string `json:"credentialsSecret,omitempty"`
	ManagedIdentityClientID string `json:"managedIdentityClientId,omitempty"`
	TenantID                string `json:"tenantId,omitempty"`
}

func (c *BlobStoreConfig) check(v *Violations) {
	if c == nil {
		return
	}
	v.Require(c.CredentialsSecret == "" || c.ManagedIdentityClientID == "", "blobStoreConfig.managedIdentityClientId",
		"give either credentialsSecret or managedIdentityClientId, not both")
	v.Require(len(c.ManagedIdentityClientID) <= 256, "blobStoreConfig.managedIdentityClientId",
		"must have at most 256 bytes")
	v.Require(len(c.TenantID) <= 256, "blobStoreConfig.tenantId", "must have at most 256 bytes")
}

// InferenceParameters configure rollouts. A rollout samples several completions per prompt, because
// training uses the differences between completions of the same prompt.
type InferenceParameters struct {
	MaxOutputTokens         int      `json:"maxOutputTokens,omitempty"`
	Temperature             *float64 `json:"temperature,omitempty"`
	TopP                    float64  `json:"topP,omitempty"`
	TopK                    int      `json:"topK,omitempty"`
	ResponseCandidatesCount int      `json:"responseCandidatesCount,omitempty"`
	// further fields of completion requests, as a JSON object
	ExtraBody string `json:"extraBody,omitempty"`
}

// Defaults and limits of InferenceParameters.
const (
	DefaultTemperature = 0.7
	DefaultCandidates  = 4
	MaxCandidates      = 128
)

func (p *InferenceParameters) check(v *Violations) {
	if p == nil {
		return
	}
	const prefix = "inferenceParameters."
	v.Require(p.MaxOutputTokens >= 0 && p.MaxOutputTokens <= 1<<20, prefix+"maxOutputTokens",
		"must be from 0 to %d; 0 stands for the default", 1<<20)
	v.Require(p.Temperature == nil || *p.Temperature > 0 && *p.Temperature <= 2, prefix+"temperature",
		"must be above 0 and at most 2; at 0, all completions of a prompt are identical and give no training signal; "+
			"the default is %v",
		DefaultTemperature)
	v.Require(p.TopP >= 0 && p.TopP <= 1, prefix+"topP", "must be from 0 to 1; 0, the default, is no limit")
	v.Require(p.TopK >= 0 && p.TopK <= 100, prefix+"topK", "must be from 0 to 100; 0, the default, is no limit")
	v.Require(p.ResponseCandidatesCount == 0 || p.ResponseCandidatesCount >= 2 &&
		p.ResponseCandidatesCount <= MaxCandidates,
		prefix+"responseCandidatesCount", "must be from 2 to %d; 0 is the default, %d", MaxCandidates, DefaultCandidates)
	var object map[string]any
	v.Require(p.ExtraBody == "" || len(p.ExtraBody) <= 64<<10 && json.Unmarshal([]byte(p.ExtraBody), &object) == nil &&
		object != nil,
		prefix+"extraBody", "must be a string with a JSON object of at most 64 KiB")
}

// withDefaults returns a copy of the parameters with unset fields set to their defaults.
func (p *InferenceParameters) withDefaults() *InferenceParameters {
	var full InferenceParameters
	if p != nil {
		full = *p
	}
	if full.Temperature == nil {
		temperature := DefaultTemperature
		full.Temperature = &temperature
	}
	if full.ResponseCandidatesCount == 0 {
		full.ResponseCandidatesCount = DefaultCandidates
	}
	return &full
}
