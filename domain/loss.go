package domain

import "slices"

// Methods of a loss. Of the reinforcement methods, GRPO clips the probability ratio to [0.8, 1.2]
// and may have a KL term, DAPO clips it to [0.8, 1.28] and has no KL term, and GSPO_TOKEN uses the
// ratio of whole sequences.
const (
	LossUnspecified = "METHOD_UNSPECIFIED"
	LossGRPO        = "GRPO"
	LossDAPO        = "DAPO"
	LossGSPO        = "GSPO_TOKEN"
	LossDPO         = "DPO"
	LossORPO        = "ORPO" // preference loss that needs no reference model
)

var (
	reinforcementLosses = []string{LossGRPO, LossDAPO, LossGSPO}
	preferenceLosses    = []string{LossDPO, LossORPO}
)

// Defaults of the settings in DPOLoss and ORPOLoss.
const (
	DefaultDPOBeta    = 0.1
	DefaultORPOLambda = 0.1
)

// LossConfig configures the loss that training minimizes.
type LossConfig struct {
	Method string    `json:"method,omitempty"`
	KLBeta *float64  `json:"klBeta,omitempty"` // weight of the KL term of GRPO; nil stands for the trainer's default
	DPO    *DPOLoss  `json:"dpo,omitempty"`
	ORPO   *ORPOLoss `json:"orpo,omitempty"`
}

// DPOLoss holds the settings of the preference loss DPO.
type DPOLoss struct {
	Beta                float64 `json:"beta,omitempty"` // factor β of the DPO loss; 0 stands for DefaultDPOBeta
	RefCacheConcurrency int     `json:"refCacheConcurrency,omitempty"`
	RefCacheBatchSize   int     `json:"refCacheBatchSize,omitempty"`
}

// ORPOLoss holds the settings of the preference loss ORPO.
type ORPOLoss struct {
	Lambda float64 `json:"lambda,omitempty"` // weight of the odds-ratio term; 0 stands for DefaultORPOLambda
}

// check adds the violations of the loss to v. methods lists the methods that the kind of job
// supports, the default first.
func (c *LossConfig) check(v *Violations, methods []string) {
	if c == nil {
		return
	}
	method := c.method(methods[0])
	if !slices.Contains(methods, method) {
		v.Add("lossConfig.method", "%s",
			OneOfRule(method, append([]string{LossUnspecified}, methods...)))
	} else {
		v.Require(c.KLBeta == nil || method == LossGRPO, "lossConfig.klBeta",
			"is set, but the method %s has no KL term: leave klBeta out, or choose the method GRPO", method)
		v.Require(c.DPO == nil || method == LossDPO, "lossConfig.dpo", "is for the method DPO, not %s: leave it out", method)
		v.Require(c.ORPO == nil || method == LossORPO, "lossConfig.orpo", "is for the method ORPO, not %s: leave it out",
			method)
	}
	v.Require(c.KLBeta == nil || *c.KLBeta >= 0 && *c.KLBeta <= 10, "lossConfig.klBeta", "must be from 0 to 10")
	if d := c.DPO; d != nil {
		v.Require(d.Beta >= 0 && d.Beta <= 100, "lossConfig.dpo.beta", "must be from 0 to 100; 0 stands for the default, %v",
			DefaultDPOBeta)
		v.Require(d.RefCacheConcurrency >= 0 && d.RefCacheConcurrency <= 1024, "lossConfig.dpo.refCacheConcurrency",
			"must be from 0 to 1024; 0 stands for the default")
		v.Require(d.RefCacheBatchSize >= 0 && d.RefCacheBatchSize <= 1<<20, "lossConfig.dpo.refCacheBatchSize",
			"must be from 0 to %d; 0 stands for the default", 1<<20)
	}
	if o := c.ORPO; o != nil {
		v.Require(o.Lambda >= 0 && o.Lambda <= 100, "lossConfig.orpo.lambda",
			"must be from 0 to 100; 0 stands for the default, %v",
			DefaultORPOLambda)
	}
}

func (c *LossConfig) method(fallback string) string {
	if c == nil || unspecified(c.Method) {
		return fallback
	}
	return c.Method
}

// withDefaults returns the loss with its defaults. methods are those that the kind of job supports,
// the default first.
func (c *LossConfig) withDefaults(methods []string) *LossConfig {
	full := LossConfig{Method: c.method(methods[0])}
	if c != nil {
		full.KLBeta = c.KLBeta
	}
	switch full.Method {
	case LossDPO:
		full.DPO = &DPOLoss{}
		if c != nil && c.DPO != nil {
			*full.DPO = *c.DPO
		}
		if full.DPO.Beta == 0 {
			full.DPO.Beta = DefaultDPOBeta
		}
	case LossORPO:
		full.ORPO = &ORPOLoss{}
		if c != nil && c.ORPO != nil {
			*full.ORPO = *c.ORPO
		}
		if full.ORPO.Lambda == 0 {
			full.ORPO.Lambda = DefaultORPOLambda
		}
	}
	return &full
}
