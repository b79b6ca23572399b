package domain

import (
	"fmt"
	"math"
	"time"
)

// A ReleaseEvaluation is the decision about the current step of a release.
type ReleaseEvaluation struct {
	Decision string // ReleaseGoesOn, ReleaseStepPassed or ReleaseFails
	Reason   string // why, with figures; "" for ReleaseGoesOn
}

// Decisions about a step of a release.
const (
	ReleaseGoesOn     = ""       // the step needs more samples
	ReleaseStepPassed = "PASSED" // the candidate has passed the step
	ReleaseFails      = "FAILED" // the candidate gets no more requests
)

// Evaluate decides about the current step from the samples of this step. It may be called after any
// number of samples, any number of times:
//
//   - The step fails as soon as a sequential test rejects that the candidate keeps the rules. There
//     are tests of the errors, of the time to the first token and of the time per token. Each is an
//     e-process (see twoArms): for a candidate that keeps its rule, the probability that it ever
//     reaches 1/α is at most α (Ville's inequality). The α of all tests of all steps add up to 1 %,
//     so a candidate that keeps all rules is rolled back in at most 1 % of releases, however often
//     samples are evaluated.
//   - It also fails when a gateway has stopped the candidate because of such a test.
//   - The step passes when both deployments have MinSamples samples, and the observed figures keep
//     the rules.
//   - The step fails when it has taken longer than MaxStepDuration.
//
// The tests assume that requests are independent, and that both deployments get the same kind of
// requests at the same time. Selection by KEY weakens this: see docs/releases.md.
//
// Source of the method: Grünwald, de Heide, Koolen, "Safe Testing", JRSS B 86 (2024); Turner, Ly,
// Grünwald, "Generic E-variables for exact sequential k-sample tests that allow for optional
// stopping", JSPI 230 (2024); Robbins, "Statistical Methods Related to the Law of the Iterated
// Logarithm" (1970) for the mixtures.
func (t *TrafficSplit) Evaluate(s ReleaseSamples, now time.Time) ReleaseEvaluation {
	if s.Failed != "" {
		return ReleaseEvaluation{ReleaseFails, s.Failed}
	}
	threshold := math.Log(float64(releaseFalsePositives * releaseTests * (len(t.Steps) + 1)))
	rules := t.rules(s)
	for _, rule := range rules {
		if rule.evidence() >= threshold {
			return ReleaseEvaluation{ReleaseFails, rule.text + " " + t.stepText()}
		}
	}
	if t.State != ReleaseRunning {
		return ReleaseEvaluation{}
	}
	broken := ""
	for _, rule := range rules {
		if !rule.kept {
			broken = "; " + rule.text
		}
	}
	need := int64(*t.MinSamples)
	switch {
	case broken == "" && s.Stable.Requests >= need && s.Candidate.Requests >= need:
		return ReleaseEvaluation{ReleaseStepPassed, fmt.Sprintf("the candidate kept the rules in %d requests %s",
			s.Candidate.Requests, t.stepText())}
	case now.Sub(t.Since) > t.stepDuration():
		return ReleaseEvaluation{ReleaseFails, fmt.Sprintf("the candidate did not pass within %s %s: it got %d of %d "+
			"requests%s", t.MaxStepDuration, t.stepText(), s.Candidate.Requests, need, broken)}
	}
	return ReleaseEvaluation{}
}

const (
	releaseFalsePositives = 100 // 1 / α of a whole release
	releaseTests          = 3   // see rules
)

// A releaseRule is a rule of a release, with the samples that test it.
type releaseRule struct {
	kept     bool           // whether the observed figures keep the rule
	text     string         // the observed figures
	evidence func() float64 // logarithm of the e-value against the hypothesis that the candidate keeps the rule
}

func (t *TrafficSplit) rules(s ReleaseSamples) []releaseRule {
	c, b := s.Candidate, s.Stable
	allowed := int64(*t.MaxErrorIncreasePercent)
	return []releaseRule{
		{kept: (c.Errors*b.Requests-b.Errors*c.Requests)*100 <= allowed*c.Requests*b.Requests,
			text: fmt.Sprintf("%d of %d requests failed on the candidate, and %d of %d on the stable deployment (allowed: "+
				"%d %% more)", c.Errors, c.Requests, b.Errors, b.Requests, allowed),
			evidence: func() float64 {
				return twoArms(c.Errors, c.Requests, b.Errors, b.Requests, float64(allowed)/100)
			}},
		latencyRule("time to the first token", c.FirstToken, b.FirstToken, *t.MaxLatencyPercent),
		latencyRule("time per token", c.PerToken, b.PerToken, *t.MaxLatencyPercent),
	}
}

// latencyRule returns the rule that the candidate's latencies are stochastically at most percent of
// those of the stable deployment: for every latency x, at most as many of the candidate's are above
// percent × x as are of the stable deployment's above x. It is tested for the start of every second bin
// as x, and the evidence is the mean of these e-values, which again is one.
//
// Both sides round percent to whole bins, in the direction of the doubt: a median that is more than a
// bin (9 %) above percent never keeps the rule, and the test rounds percent up.
func latencyRule(what string, c, b Latencies, percent int) releaseRule {
	bins := binsPerDoubling * math.Log2(float64(percent)/100)
	shift, allowed := int(math.Ceil(bins-1e-9)), int(math.Floor(bins+1e-9))
	median, stable := c.quantile(50), b.quantile(50)
	return releaseRule{
		kept: median < 0 || stable < 0 || median-stable <= allowed,
		text: fmt.Sprintf("the median %s was %s on the candidate, and %s on the stable deployment (allowed: %d %%)", what,
			microseconds(median), microseconds(stable), percent),
		evidence: func() float64 {
			total := 0.0
			cn, bn := c.count(0), b.count(0)
			for bin := 1; bin+shift < len(c); bin += 2 {
				total += math.Exp(min(700, twoArms(c.count(bin+shift), cn, b.count(bin), bn, 0)))
			}
			return math.Log(total / (LatencyBins / 2))
		}}
}

func microseconds(bin int) string {
	return (time.Duration(latencyOf(max(0, bin))) * time.Microsecond).String()
}

// twoArms returns the logarithm of an e-value against the hypothesis p ≤ q + margin, where p and q
// are the probabilities of a success in each of n and m trials, of which s and r succeeded. It is
// the likelihood of the trials under the mixtures Beta(1/2, 1/2) of p and of q, divided by the
// maximum of their likelihood under the hypothesis. Under the hypothesis, the divisor is at least
// the likelihood at the true p and q, with which the quotient would be a martingale of mean 1.
func twoArms(s, n, r, m int64, margin float64) float64 {
	if n == 0 || m == 0 {
		return math.Inf(-1)
	}
	ps, pn, rs, rm := float64(s), float64(n), float64(r), float64(m)
	if ps/pn <= rs/rm+margin {
		return math.Inf(-1) // the e-value is below 1; 0 is a lower bound
	}
	// the likelihood is concave, and its maximum under the hypothesis is where p = q + margin
	q, low, high := 0.0, 0.0, 1-margin
	for range 50 {
		q = (low + high) / 2
		p := q + margin
		if slope := quotient(ps, p) - quotient(pn-ps, 1-p) + quotient(rs, q) - quotient(rm-rs, 1-q); slope > 0 {
			low = q
		} else {
			high = q
		}
	}
	p := q + margin
	return mixture(ps, pn-ps) + mixture(rs, rm-rs) - likelihood(ps, pn-ps, p) - likelihood(rs, rm-rs, q)
}

// quotient returns count / p, and 0 for no counts.
func quotient(count, p float64) float64 {
	if count == 0 {
		return 0
	}
	return count / p
}

// likelihood returns the logarithm of the likelihood of successes and failures with probability p.
func likelihood(successes, failures, p float64) float64 {
	sum := 0.0
	if successes > 0 {
		sum += successes * math.Log(p)
	}
	if failures > 0 {
		sum += failures * math.Log1p(-p)
	}
	return sum
}

// mixture returns the logarithm of the likelihood of successes and failures under Beta(1/2, 1/2).
func mixture(successes, failures float64) float64 {
	lgamma := func(x float64) float64 { y, _ := math.Lgamma(x); return y }
	return lgamma(successes+0.5) + lgamma(failures+0.5) - lgamma(successes+failures+1) - math.Log(math.Pi)
}
