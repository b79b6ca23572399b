package train

import "fmt"

// Guards end what would go on to ruin the model. They follow from the figures
// of the steps alone, so a resumed training is stopped where the whole one is.
const (
	// mostFall is how much less likely than in the reference, in nats a token,
	// the chosen answers may become: DPO widens the gap to the rejected ones
	// even by making both unlikely (Pal et al. 2024, "Smaug").
	mostFall = 0.5
	// shiftMemory is the share of the past in the mean that is guarded.
	shiftMemory = 0.9
	// mostDrift is the KL divergence a token from the model that wrote the
	// answers, from which on the rest of them is left out.
	mostDrift = 0.05
	// flatRows is the least number of rows without a signal that stop a training.
	flatRows = 200
)

// guard stops a training on preferences whose chosen answers become unlikely.
func (j *job) guard(told figures) {
	shift, ok := told[chosenShift]
	if !ok {
		return
	}
	s := &j.state
	s.Shift = shiftMemory*s.Shift + (1-shiftMemory)*shift.value()
	if s.Shift < -mostFall {
		s.Stopped, s.Reason = true, fmt.Sprintf("the chosen answers have become less likely, by %.2g nats a token: going on would ruin the model; "+
			"lower learningRate or epochs, or raise lossConfig.dpo.beta", -s.Shift)
	}
}
