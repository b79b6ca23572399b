package train

// A Sample is the unit of an objective: a sequence, or a pair of sequences. Token i > 0 is a
// target if Scored[i]. Values per target are in the order of the tokens, those of Rejected
// after the sample's own.
type Sample struct {
	Tokens []int32 `json:"tokens"`
	Scored []bool  `json:"scored"`

	// Rejected is the worse answer to the same prompt in a preference pair.
	Rejected *Sample `json:"rejected,omitempty"`
	// Reference is the log-probability of each target under the reference model.
	Reference []float32 `json:"reference,omitempty"`
	// Behaviour is the log-probability of each target under the policy that generated the answer.
	Behaviour []float32 `json:"behaviour,omitempty"`
	// Advantage is the group-relative advantage of the answer, in standard deviations.
	Advantage float64 `json:"advantage,omitempty"`
}

// inputs is the number of input tokens of a forward pass.
func (s *Sample) inputs() int {
	if s.Rejected != nil {
		return len(s.Tokens) - 1 + s.Rejected.inputs()
	}
	return len(s.Tokens) - 1
}

// scored counts the target tokens.
func (s *Sample) scored() int {
	if s.Rejected != nil {
		return s.learnt() + s.Rejected.scored()
	}
	return s.learnt()
}

// learnt counts the target tokens of the first sequence.
func (s *Sample) learnt() int {
	n := 0
	for i, on := range s.Scored {
		if on && i > 0 {
			n++
		}
	}
	return n
}
