package train

// gspo is group sequence policy optimization (Zheng et al. 2025, "Group Sequence Policy
// Optimization", equations 5, 7 and 13): the mean over responses of
//
//	loss = −min(s·A, clip(s, low, high)·A)
//	s = (π(y)/π_old(y))^(1/|y|)
//
// Its token variant has the same value and, because all tokens of a response share one
// advantage, the same gradient: −s·A/|y| for each token.
type gspo struct{ clipping }

func (gspo) weight(*Sample) float64 { return 1 }

func (o gspo) loss(s *Sample, logp, grads []float32, metrics means) float64 {
	n := float64(len(logp))
	shift := (total(logp) - total(s.Behavior)) / n
	loss, grad := o.term(shift, s.Advantage, metrics)
	fill32(grads, grad/n)
	for i, lp := range logp {
		metrics.add(drift, driftTerm(float64(lp)-float64(s.Behavior[i])), 1)
	}
	return loss
}
