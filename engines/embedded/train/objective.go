package train

// An objective is the loss that training minimizes: the sum of the losses of the samples, divided
// by the sum of their weights. It depends on the model only through the log-probabilities of the
// target tokens.
type objective interface {
	// weight returns the weight of a sample in the mean.
	weight(s *Sample) float64
	// loss returns the loss of the sample s. logp are the log-probabilities of its target tokens.
	// loss writes its derivatives with respect to logp to grads, and adds metrics to metrics.
	loss(s *Sample, logp, grads []float32, metrics means) (loss float64)
}

// means are weighted means by the name of the metric.
type means map[string]mean

type mean struct{ sum, weight float64 }

func (m mean) value() float64 {
	if m.weight == 0 {
		return 0
	}
	return m.sum / m.weight
}

func (f means) add(name string, sum, weight float64) {
	m := f[name]
	f[name] = mean{m.sum + sum, m.weight + weight}
}

func (f means) merge(more means) {
	for name, m := range more {
		f.add(name, m.sum, m.weight)
	}
}

// values returns the means by name. It puts prefix and a slash before each name.
func (f means) values(prefix string) map[string]float64 {
	out := map[string]float64{}
	for name, m := range f {
		out[prefix+"/"+name] = m.value()
	}
	return out
}

func total(v []float32) float64 {
	sum := 0.0
	for _, x := range v {
		sum += float64(x)
	}
	return sum
}

func fill32(v []float32, value float64) {
	for i := range v {
		v[i] = float32(value)
	}
}

func share(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
