package rows

import (
	"math"

	"anneal/domain"
)

// Which texts are counted, so that the time of checking a large dataset does
// not hang on the tokenizer.
const (
	countedFirst = 1 << 20 // bytes, from the beginning
	countedEvery = 64      // rows, from there on
)

// An estimate is the tokens per byte of some of a dataset's texts.
type estimate struct {
	bytes  int64
	tokens int64
	listen func(text string)
}

// ear is what hears the texts of a row, nil when the row is not among those
// that are counted.
func (e *estimate) ear(count func(string) int, row domain.Count) func(text string) {
	if count == nil || e.bytes >= countedFirst && row%countedEvery != 0 {
		return nil
	}
	if e.listen == nil {
		e.listen = func(text string) {
			e.bytes += int64(len(text))
			e.tokens += int64(count(text))
		}
	}
	return e.listen
}

// of is the tokens of so many bytes of text, rounded up.
func (e *estimate) of(bytes int64) int64 {
	if e.bytes == 0 {
		return (bytes + 3) / 4
	}
	return int64(math.Ceil(float64(bytes) * (float64(e.tokens) / float64(e.bytes))))
}
