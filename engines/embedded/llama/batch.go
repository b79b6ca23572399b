package llama

// A Batch has several sequences, one after the other. Attention does not cross sequences.
type Batch struct {
	Tokens  []int32 // input tokens of all sequences
	Targets []int32 // next token after each input token; -1 if it is not a target
	Starts  []int32 // index in Tokens of the first token of each sequence
}

// Reset removes all sequences, and keeps the memory.
func (b *Batch) Reset() {
	b.Tokens, b.Targets, b.Starts = b.Tokens[:0], b.Targets[:0], b.Starts[:0]
}

// Add appends a sequence of at least two tokens. scored[i] reports whether token i > 0 is a target.
func (b *Batch) Add(tokens []int32, scored []bool) {
	b.Starts = append(b.Starts, int32(len(b.Tokens)))
	n := len(tokens) - 1
	b.Tokens = append(b.Tokens, tokens[:n]...)
	for i := range n {
		target := int32(-1)
		if scored[i+1] {
			target = tokens[i+1]
		}
		b.Targets = append(b.Targets, target)
	}
}

// Scored returns the number of targets.
func (b *Batch) Scored() int {
	n := 0
	for _, t := range b.Targets {
		if t >= 0 {
			n++
		}
	}
	return n
}

// span returns the range of sequence i in Tokens.
func (b *Batch) span(i int) (lo, hi int) {
	lo, hi = int(b.Starts[i]), len(b.Tokens)
	if i+1 < len(b.Starts) {
		hi = int(b.Starts[i+1])
	}
	return lo, hi
}
