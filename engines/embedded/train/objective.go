package train

// An objective is what training minimises: over a batch, the samples' losses
// divided by their weights. It sees of the model only how likely it finds the
// tokens that are learnt.
type objective interface {
	// weight is what a sample counts in the mean.
	weight(s *Sample) float64
	// judge answers a sample's loss, given the log-probability of each of its
	// learnt tokens, puts its derivative by each of them into slopes, and tells
	// figures.
	judge(s *Sample, logp, slopes []float32, told figures) (loss float64)
}

// figures are means under their names.
type figures map[string]mean

// A mean is a sum, and what it is to be divided by.
type mean struct{ sum, weight float64 }

func (m mean) value() float64 {
	if m.weight == 0 {
		return 0
	}
	return m.sum / m.weight
}

func (f figures) add(name string, sum, weight float64) {
	m := f[name]
	f[name] = mean{m.sum + sum, m.weight + weight}
}

func (f figures) merge(more figures) {
	for name, m := range more {
		f.add(name, m.sum, m.weight)
	}
}

// values are the means, each name below a folder.
func (f figures) values(folder string) map[string]float64 {
	out := map[string]float64{}
	for name, m := range f {
		out[folder+"/"+name] = m.value()
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

// fill32 sets every element.
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
