package llama

import "anneal/engines/embedded/kernel"

// Backward adds the gradient of an objective to g. dlogp is the derivative of the objective with
// respect to the log-probabilities that the last Forward returned.
func (p *Pass) Backward(dlogp []float32, g *Gradient) {
	if len(p.segments) > 0 {
		p.segments[0].gradient = g
	}
	p.layersBackward(p.scoreBack(dlogp, g), g)
}

// layersBackward computes the gradients of all layers. dx is the gradient of the output of the last
// one.
func (p *Pass) layersBackward(dx kernel.Matrix, g *Gradient) {
	for i := len(p.layers) - 1; i >= 0; i-- {
		dx = p.backwardLayer(i, dx, g)
	}
	if g.weights != nil {
		for i, t := range p.batch.Tokens {
			kernel.Axpy(1, dx.Row(i), g.weights.Embed.Row(int(t)))
		}
	}
}

// scoreBack computes the gradient of the logits in p.probs, and returns the gradient of the last
// layer's output. The derivative of log p(target) with respect to logit v is ([v = target] -
// p(v))/temperature.
func (p *Pass) scoreBack(dlogp []float32, g *Gradient) kernel.Matrix {
	for i, row := range p.rows {
		d := p.probs.Row(i)
		grad := dlogp[i] * p.inverseTemperature()
		kernel.Scale(-grad, d)
		d[p.batch.Targets[row]] += grad
	}
	return p.logitsBack(g)
}

// logitsBack returns the gradient of the last layer's output. p.probs has the gradient of the
// logits.
func (p *Pass) logitsBack(g *Gradient) kernel.Matrix {
	dfinal := p.arena.matrix(p.final.Rows, p.final.Cols)
	kernel.Gemm(dfinal, p.probs, &p.net.headBack, false, 1)
	var dnorm []float32
	if g.weights != nil {
		kernel.GemmTN(g.weights.Head, p.probs, p.final, 1)
		dnorm = g.weights.Norm
	}
	return p.lastBack(dfinal, dnorm)
}

// lastBack returns the gradient of the last layer's output. dfinal is that of the final norm's
// result.
func (p *Pass) lastBack(dfinal kernel.Matrix, dnorm []float32) kernel.Matrix {
	dlast := p.arena.matrix(p.last.Rows, p.last.Cols)
	clear(dlast.Data)
	normalizeBack(dlast, dfinal, p.last, p.inverse, p.net.Weights.Norm, dnorm)
	return dlast
}

// backwardLayer returns the gradient of the input of layer i. dx is the gradient of its output,
// which backwardLayer overwrites.
func (p *Pass) backwardLayer(i int, dx kernel.Matrix, g *Gradient) kernel.Matrix {
	w, s, net, n := p.net.Weights, &p.layers[i], &p.net.layers[i], dx.Rows
	c, l := &w.Config, &w.Layers[i]
	var grad Layer // the norms and biases of grad are nil if only an adapter is trained
	if g.weights != nil {
		grad = g.weights.Layers[i]
	}
	dact := p.arena.matrix(n, c.IntermediateSize)
	p.projectBack(dact, dx, s.act, &net.down, g, i, 3)
	gateBack(s.gu, dact)
	dnorm := p.arena.matrix(n, c.HiddenSize)
	p.projectBack(dnorm, s.gu, s.norm2, &net.gateUp, g, i, 2)
	normalizeBack(dx, dnorm, s.mid, s.inverse2, l.MLPNorm, grad.MLPNorm)

	dattn := p.arena.matrix(n, s.attn.Cols)
	p.projectBack(dattn, dx, s.attn, &net.o, g, i, 1)
	if i == len(p.layers)-1 {
		dx, dattn = p.scatter(dx), p.scatter(dattn)
		dnorm = p.arena.matrix(dx.Rows, dx.Cols)
	}
	dqkv := p.arena.matrix(s.qkv.Rows, s.qkv.Cols)
	p.attendBack(s, dattn, dqkv)
	p.turn(dqkv.ColRange(0, (c.Heads+c.KVHeads)*c.HeadDim), p.net.rope.TurnBack)
	p.normalizeHeadsBack(s, l, &grad, dqkv)
	if i == 0 && g.weights == nil {
		lowRanks{p, i, 0}.back(kernel.Matrix{}, dqkv)
		return dx // the layers below have no trained parameters
	}
	p.projectBack(dnorm, dqkv, s.norm1, &net.qkv, g, i, 0)
	normalizeBack(dx, dnorm, s.x, s.inverse1, l.AttnNorm, grad.AttnNorm)
	return dx
}

// normalizeHeadsBack converts dqkv from the gradient of the normalized queries and keys to that of
// the queries and keys before the head norms. It does nothing for a model without head norms.
func (p *Pass) normalizeHeadsBack(s *layerState, l, grad *Layer, dqkv kernel.Matrix) {
	if l.QNorm == nil {
		return
	}
	c := &p.net.Weights.Config
	heads, d := c.Heads+c.KVHeads, c.HeadDim
	dout := p.arena.vector(d)
	for i := range dqkv.Rows {
		for head := range heads {
			weight, dweight := l.QNorm, grad.QNorm
			if head >= c.Heads {
				weight, dweight = l.KNorm, grad.KNorm
			}
			din := dqkv.Row(i)[head*d : (head+1)*d]
			copy(dout, din)
			clear(din)
			kernel.RMSNormGrad(din, dweight, dout, s.raw.Row(i)[head*d:(head+1)*d], weight, s.inverseHeads[i*heads+head])
		}
	}
}

// projectBack computes dx = dy·W, and adds the gradients of W or of the adapter to g.
func (p *Pass) projectBack(dx, dy, x kernel.Matrix, lin *linear, g *Gradient, layer, input int) {
	kernel.Gemm(dx, dy, &lin.back, false, 1)
	if g.weights != nil {
		kernel.GemmTN(g.weights.stacks(layer)[input], dy, x, 1)
		if bias := g.weights.Layers[layer].Bias[input]; bias != nil {
			for i := range dy.Rows {
				kernel.Add(bias, bias, dy.Row(i))
			}
		}
		return
	}
	lowRanks{p, layer, input}.back(dx, dy)
}
