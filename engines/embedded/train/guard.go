package train

import "fmt"

// Limits at which a training run stops before it degrades the model. Whether a limit is reached
// depends only on the metrics of the steps, so a resumed training stops at the same step as an
// uninterrupted one.
const (
	// maxFall is the maximum decrease of the log-probability of the chosen responses below that
	// under the reference model, in nats per token. DPO can widen the margin by making both
	// responses unlikely (Pal et al. 2024, "Smaug").
	maxFall = 0.5
	// shiftDecay is the weight of earlier steps in the moving average of chosenShift.
	shiftDecay = 0.9
	// maxDrift is the maximum KL divergence per token from the policy that generated the responses.
	// If it is exceeded, the remaining steps on these responses are skipped.
	maxDrift = 0.05
	// flatRows is the number of consecutive rows without a reward signal after which the training
	// stops.
	flatRows = 200
)

// guard stops a training on preferences when the chosen responses have become too unlikely: see
// maxFall.
func (j *job) guard(metrics means) {
	shift, ok := metrics[chosenShift]
	if !ok {
		return
	}
	s := &j.state
	s.Shift = shiftDecay*s.Shift + (1-shiftDecay)*shift.value()
	if s.Shift < -maxFall {
		s.Stopped, s.Reason = true, fmt.Sprintf("the log-probability of the chosen responses fell by %.2g nats per "+
			"token: further training would degrade the model; lower learningRate or epochs, or raise "+
			"lossConfig.dpo.beta", -s.Shift)
	}
}
