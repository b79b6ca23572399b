package rows

import (
	"strconv"

	"anneal/domain"
)

// MaxMetrics is the maximum number of metrics of the samples in a row.
const MaxMetrics = 64

// samples reads a row of shape samples: {"samples": [{"messages": […], METRIC: 0..1}]}. Every
// sample must have the same metrics, at least one.
func (r *reader) samples(value []byte) {
	r.row.Shape = domain.ShapeSamples
	r.metrics = r.metrics[:0]
	n, first := 0, true
	c := r.list("samples", value, 1)
	for ; c != nil && c.more(); n++ {
		mark := r.pushPath("samples", n)
		if c.object() {
			r.sample(c, first)
			first = false
		} else {
			c.value()
			r.reject("", " must be a JSON object")
		}
		r.path = r.path[:mark]
	}
	if n == 0 && c != nil {
		r.reject("samples", " must not be empty")
	}
}

// sample reads one sample. The first sample of a row determines the metrics of all its samples.
func (r *reader) sample(c *cursor, first bool) {
	var sample Sample
	if r.keep {
		sample.Metrics = map[string]float64{}
	}
	var messages conversation
	var seen uint64 // a bit for each metric that the sample has
	given := false
	for c.enter(); c.more(); {
		name := c.key()
		if string(name) == "messages" && !given {
			messages, given = r.messages(c, "messages", 2), true
			continue
		}
		value := c.value()
		if string(name) == "messages" {
			r.rejectDuplicate("messages")
			continue
		}
		if len(name) == 0 {
			r.reject("", " has a metric without a name")
			continue
		}
		i := r.metric(name, first)
		switch {
		case i < 0 && first:
			r.reject(clip(string(name)), " exceeds the limit of %d metrics", MaxMetrics)
		case i < 0:
			r.reject(clip(string(name)), " is not a metric of the first sample: all samples need the same metrics")
		case seen&(1<<i) != 0:
			r.rejectDuplicate(clip(string(name)))
		default:
			seen |= 1 << i
		}
		score, err := strconv.ParseFloat(string(value), 64)
		if !isNumber(value) || err != nil || score < 0 || score > 1 {
			r.reject(clip(string(name)), " must be a number from 0 to 1")
		} else if r.keep {
			sample.Metrics[string(name)] = score
		}
	}
	if len(r.metrics) == 0 {
		r.reject("", " has no metric: a sample must have messages and at least one number from 0 to 1")
	}
	for i, name := range r.metrics {
		if seen&(1<<i) == 0 {
			r.reject(clip(name), " is missing; all samples need the metrics of the first sample")
		}
	}
	if !messages.given {
		r.reject("messages", " must not be empty")
	}
	if r.keep {
		sample.Messages = messages.all
		r.row.Samples = append(r.row.Samples, sample)
	}
}

// metric returns the index in r.metrics of the metric with this name; -1 if the name is unknown.
// For the first sample of a row, first is true and metric adds an unknown name, unless r.metrics
// has MaxMetrics names. To save an allocation, it reuses the string of the previous row if the
// names are equal.
func (r *reader) metric(name []byte, first bool) int {
	n := len(r.metrics)
	if i := indexOf(r.metrics, name); i >= 0 || !first || n == MaxMetrics {
		return i
	}
	if n < cap(r.metrics) && r.metrics[:n+1][n] == string(name) {
		r.metrics = r.metrics[:n+1]
	} else {
		r.metrics = append(r.metrics, string(name))
	}
	return n
}
