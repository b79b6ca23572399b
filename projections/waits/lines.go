package waits

import (
	"errors"
	"slices"
)

// A Line is a part of a History as a snapshot stores it: one bucket, or the levels and the starts.
type Line struct {
	Low    int64   `json:"low,omitempty"`
	High   int64   `json:"high,omitempty"`
	Starts []Start `json:"starts,omitempty"`
	Bucket *uint64 `json:"bucket,omitempty"`
	// waits that the bucket keeps, in seconds; empty for the line with the levels and the starts
	Waits []int64 `json:"waits,omitempty"`
	Next  int     `json:"next,omitempty"`
}

// Lines yields the lines of the history in a fixed order; none for an empty history.
func (h *History) Lines(yield func(Line) error) error {
	if len(h.starts) == 0 && h.buckets.Len() == 0 {
		return nil
	}
	err := yield(Line{Low: h.low, High: h.high, Starts: h.starts})
	h.buckets.Scan(func(k uint64, b *bucket) bool {
		if err == nil {
			err = yield(Line{Bucket: &k, Waits: b.last, Next: b.next})
		}
		return err == nil
	})
	return err
}

// Restore adds the content of a line, which Lines yielded, to the history.
func (h *History) Restore(l Line) error {
	h.shared = nil
	if l.Bucket == nil {
		h.low, h.high, h.starts = l.Low, l.High, slices.Clip(l.Starts)
		return nil
	}
	if len(l.Waits) == 0 || len(l.Waits) > maxWaits || l.Next < 0 || l.Next >= len(l.Waits) {
		return errors.New("the history of job waits has a bucket with no or too many waits, or with an invalid index")
	}
	h.buckets.Set(*l.Bucket, &bucket{h.generation, l.Waits, l.Next})
	return nil
}
