package waits

import (
	"errors"
	"slices"
)

// A Line is a part of a History in a snapshot: the levels with the starts, or a bucket.
type Line struct {
	Low    int64   `json:"low,omitempty"`
	High   int64   `json:"high,omitempty"`
	Starts []Start `json:"starts,omitempty"`
	Bucket *uint64 `json:"bucket,omitempty"`
	Waits  []int64 `json:"waits,omitempty"` // of the bucket
	Next   int     `json:"next,omitempty"`
}

// Lines yields the lines of a history in a fixed order; none for a history without starts.
func (h *History) Lines(yield func(Line) error) error {
	if len(h.starts) == 0 {
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

// Restore adds a line to a history.
func (h *History) Restore(l Line) error {
	h.shared = nil
	if l.Bucket == nil {
		h.low, h.high, h.starts = l.Low, l.High, slices.Clip(l.Starts)
		return nil
	}
	if len(l.Waits) == 0 || len(l.Waits) > maxWaits || l.Next < 0 || l.Next >= len(l.Waits) {
		return errors.New("a bucket of waits is not valid")
	}
	h.buckets.Set(*l.Bucket, &bucket{h.generation, l.Waits, l.Next})
	return nil
}
