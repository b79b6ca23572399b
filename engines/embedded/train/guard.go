package train

import "fmt"

// Guards stop a training before it ruins the model. They depend on the metrics of the steps
// only, so a resumed training stops at the same step as an uninterrupted one.
const (
	// maxFall is the maximum decrease of the chosen answers' log-probability relative to the
	// reference, in nats per token: DPO widens the margin even by making both answers unlikely
	// (Pal et al. 2024, "Smaug").
	maxFall = 0.5
	// shiftDecay is the weight of the past in the moving average of chosenShift.
	shiftDecay = 0.9
	// maxDrift is the KL divergence per token from the policy that generated the answers above
	// which the rest of the chunk is skipped.
	maxDrift = 0.05
	// flatRows is the minimum number of rows without a signal that stop a training.
	flatRows = 200
)

// guard stops a preference training whose chosen answers become unlikely.
func (j *job) guard(metrics means) {
	shift, ok := metrics[chosenShift]
	if !ok {
		return
	}
	s := &j.state
	s.Shift = shiftDecay*s.Shift + (1-shiftDecay)*shift.value()
	if s.Shift < -maxFall {
		s.Stopped, s.Reason = true, fmt.Sprintf("the log-probability of the chosen answers fell by %.2g nats per token: "+
			"further training would degrade the model; lower learningRate or epochs, or raise lossConfig.dpo.beta", -s.Shift)
	}
}
