package train

// A Sample is a sequence of tokens, or a pair of sequences, for which an objective computes a loss.
// Token i > 0 is a target if Scored[i]. Slices with a value for each target have the values of the
// sample's own targets first, and then those of the targets of Rejected.
type Sample struct {
	Tokens []int32 `json:"tokens"`
	Scored []bool  `json:"scored"`

	// Rejected is the worse response of a preference pair, together with the prompt of both
	// responses.
	Rejected *Sample `json:"rejected,omitempty"`
	// Reference is the log-probability of each target under the reference model.
	Reference []float32 `json:"reference,omitempty"`
	// Behavior is the log-probability of each target under the policy that generated the response.
	Behavior []float32 `json:"behaviour,omitempty"`
	// Advantage is the group-relative advantage of the response, in standard deviations.
	Advantage float64 `json:"advantage,omitempty"`
	// Replay marks a response of the initial model, on which the divergence of the trained model from
	// the initial one is minimized: see replayProcedure.
	Replay bool `json:"replay,omitempty"`
}

// inputs returns the number of input tokens of a forward pass on the sample.
func (s *Sample) inputs() int {
	if s.Rejected != nil {
		return len(s.Tokens) - 1 + s.Rejected.inputs()
	}
	return len(s.Tokens) - 1
}

// scored returns the number of target tokens of all sequences.
func (s *Sample) scored() int {
	if s.Rejected != nil {
		return s.targets() + s.Rejected.scored()
	}
	return s.targets()
}

// targets returns the number of target tokens of the first sequence.
func (s *Sample) targets() int {
	n := 0
	for i, on := range s.Scored {
		if on && i > 0 {
			n++
		}
	}
	return n
}
