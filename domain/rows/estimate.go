package rows

import (
	"math"

	"anneal/domain"
)

// Only a part of a large dataset is tokenized, so that the time to validate it does not depend on
// the speed of the tokenizer.
const (
	countedFirst = 1 << 20 // bytes of text at the beginning of a dataset that are all tokenized
	countedEvery = 64      // after these bytes, one in countedEvery rows is tokenized
)

// An estimate counts the tokens and bytes of those rows of a dataset that are tokenized, to
// extrapolate the number of tokens of the whole dataset.
type estimate struct {
	bytes  int64
	tokens int64
	count  func(text string)
}

// counter returns a function that counts the tokens of a text and adds them to the estimate. row is
// the number of the row with the text; counter returns nil if that row is not tokenized. count
// returns the number of tokens of a text.
func (e *estimate) counter(count func(string) int, row domain.Count) func(text string) {
	if count == nil || e.bytes >= countedFirst && row%countedEvery != 0 {
		return nil
	}
	if e.count == nil {
		e.count = func(text string) {
			e.bytes += int64(len(text))
			e.tokens += int64(count(text))
		}
	}
	return e.count
}

// tokensIn returns the estimated number of tokens in this many bytes of text, rounded up.
func (e *estimate) tokensIn(bytes int64) int64 {
	if e.bytes == 0 {
		return (bytes + 3) / 4
	}
	return int64(math.Ceil(float64(bytes) * (float64(e.tokens) / float64(e.bytes))))
}
