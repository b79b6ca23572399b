package train

// A Sample is the unit of an objective: a sequence, or a pair of sequences. Token i > 0 is a
// target if Scored[i]. Values per target are in the order of the tokens. The values of the
// targets of Rejected follow those of the sample.
type Sample struct {
	Tokens []int32 `json:"tokens"`
	Scored []bool  `json:"scored"`

	// Rejected is the worse of the two answers in a preference pair, with the prompt that both
	// answers share.
	Rejected *Sample `json:"rejected,omitempty"`
	// Reference is the log-probability of each target under the reference model.
	Reference []float32 `json:"reference,omitempty"`
	// Behavior is the log-probability of each target under the policy that generated the answer.
	Behavior []float32 `json:"behaviour,omitempty"`
	// Advantage is the group-relative advantage of the answer, in standard deviations.
	Advantage float64 `json:"advantage,omitempty"`
}

// inputs returns the number of input tokens of a forward pass.
func (s *Sample) inputs() int {
	if s.Rejected != nil {
		return len(s.Tokens) - 1 + s.Rejected.inputs()
	}
	return len(s.Tokens) - 1
}

// scored returns the number of target tokens.
func (s *Sample) scored() int {
	if s.Rejected != nil {
		return s.learned() + s.Rejected.scored()
	}
	return s.learned()
}

// learned returns the number of target tokens of the first sequence.
func (s *Sample) learned() int {
	n := 0
	for i, on := range s.Scored {
		if on && i > 0 {
			n++
		}
	}
	return n
}
