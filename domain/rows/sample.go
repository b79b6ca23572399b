package rows

import (
	"strconv"

	"anneal/domain"
)

// MaxMetrics bounds the metrics of a trainer's samples.
const MaxMetrics = 64

// samples reads a trainer's row: {"samples": [{"messages": […], METRIC: 0..1}]},
// the same metrics in every sample, at least one.
func (r *reader) samples(value []byte) {
	r.row.Shape = domain.ShapeSamples
	r.metrics = r.metrics[:0]
	n, first := 0, true
	c := r.list("samples", value, 1)
	for ; c != nil && c.more(); n++ {
		mark := r.into("samples", n)
		if c.object() {
			r.sample(c, first)
			first = false
		} else {
			c.value()
			r.fault("", " must be a JSON object")
		}
		r.path = r.path[:mark]
	}
	if n == 0 && c != nil {
		r.fault("samples", " must not be empty")
	}
}

// sample reads one sample. The first one says which metrics there are.
func (r *reader) sample(c *cursor, first bool) {
	var sample Sample
	if r.keep {
		sample.Metrics = map[string]float64{}
	}
	var messages conversation
	var seen uint64 // a bit for each metric
	given := false
	for c.enter(); c.more(); {
		name := c.key()
		if string(name) == "messages" && !given {
			messages, given = r.messages(c, "messages", 2), true
			continue
		}
		value := c.value()
		if string(name) == "messages" {
			r.once("messages")
			continue
		}
		if len(name) == 0 {
			r.fault("", " has a metric without a name")
			continue
		}
		i := r.metric(name, first)
		switch {
		case i < 0 && first:
			r.fault(clip(string(name)), " is one metric too many: at most %d are allowed", MaxMetrics)
		case i < 0:
			r.fault(clip(string(name)), " is no metric of the samples before: all have the same")
		case seen&(1<<i) != 0:
			r.once(clip(string(name)))
		default:
			seen |= 1 << i
		}
		score, err := strconv.ParseFloat(string(value), 64)
		if !isNumber(value) || err != nil || score < 0 || score > 1 {
			r.fault(clip(string(name)), " must be a number in 0..1")
		} else if r.keep {
			sample.Metrics[string(name)] = score
		}
	}
	if len(r.metrics) == 0 {
		r.fault("", " has no metric: beside messages, a sample holds numbers in 0..1")
	}
	for i, name := range r.metrics {
		if seen&(1<<i) == 0 {
			r.fault(clip(name), " is missing; the samples before have it")
		}
	}
	if !messages.given {
		r.fault("messages", " must not be empty")
	}
	if r.keep {
		sample.Messages = messages.all
		r.row.Samples = append(r.row.Samples, sample)
	}
}

// metric is the number of a metric, -1 for one that there is not. The names of
// the row before are used again.
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
