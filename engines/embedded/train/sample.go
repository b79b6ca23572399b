package train

// A Sample is what an objective judges as one: a sequence, or a pair of them.
// Token i > 0 is learnt when Scored[i]. The figures of a sample's learnt tokens
// lie in their order, those of Rejected after its own.
type Sample struct {
	Tokens []int32 `json:"tokens"`
	Scored []bool  `json:"scored"`

	Rejected  *Sample   `json:"rejected,omitempty"`  // the worse answer to the same prompt, of a pair
	Reference []float32 `json:"reference,omitempty"` // log-probability of each learnt token in the model that training must stay near
	Behaviour []float32 `json:"behaviour,omitempty"` // … in the model that wrote the answer
	Advantage float64   `json:"advantage,omitempty"` // how much better the answer is than others to its prompt, in standard deviations
}

// inputs is how many tokens a pass spends on the sample.
func (s *Sample) inputs() int {
	if s.Rejected != nil {
		return len(s.Tokens) - 1 + s.Rejected.inputs()
	}
	return len(s.Tokens) - 1
}

// scored counts the tokens learnt.
func (s *Sample) scored() int {
	if s.Rejected != nil {
		return s.learnt() + s.Rejected.scored()
	}
	return s.learnt()
}

// learnt counts the tokens learnt of the first sequence.
func (s *Sample) learnt() int {
	n := 0
	for i, on := range s.Scored {
		if on && i > 0 {
			n++
		}
	}
	return n
}
