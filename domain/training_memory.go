package domain

import (
	"cmp"
	"math"
)

const (
	// trainedBytes is how many bytes a trained parameter takes: the parameter, its gradient and the
	// two moments of Adam, in four bytes each. Mixed precision takes the same: parameter and
	// gradient in two bytes, and the optimizer's copy in four ("ZeRO", Rajbhandari et al., 2020,
	// section 3.1).
	trainedBytes = 16
	// activationBytes is how many bytes each layer keeps until the backward pass, for each token
	// and each element of the width ("Reducing Activation Recomputation", Korthikanti et al., 2022,
	// equation 1, without the scores of attention, which current kernels do not store).
	activationBytes = 34
	// adapterWidths is the number of rows and columns of the seven matrices of a layer that a LoRA
	// adapter can train, divided by the width. An adapter of rank r has r parameters for each row
	// and each column.
	adapterWidths = 20
)

// Memory estimates the memory that the training of a model takes, in bytes, over all accelerators
// of a node: the trained parameters with gradients and optimizer, the frozen ones in the model's
// precision, the activations of one sample, and what the method adds:
//
//   - preferences (DPO) have two sequences in a sample, and, if all parameters are trained, the
//     frozen reference model beside the trained one; with an adapter, the reference is the base model
//   - reinforcement generates completions of a prompt concurrently, with a KV cache for each
func (s JobSpec) Memory(model ModelSize) float64 {
	parameters := float64(model.ParameterCount)
	if parameters == 0 {
		return 0
	}
	context := float64(cmp.Or(s.Config.MaxContextLength, model.ContextLength))
	layers, width := model.shape()
	sequences, frozen := 1.0, parameters*bytesPerParameter(model.Precision)*weightsOverhead
	memory := frozen
	if rank := s.rank(); rank == 0 {
		memory = parameters * trainedBytes
		if s.Method == MethodDPO {
			memory += frozen
		}
	} else {
		memory += trainedBytes * float64(rank) * adapterWidths * width * layers
	}
	if s.Method == MethodDPO {
		sequences = 2
	}
	memory += sequences * context * activationBytes * width * layers
	if r := s.Rollouts; r != nil {
		candidates := DefaultCandidates
		if r.InferenceParameters != nil {
			candidates = cmp.Or(r.InferenceParameters.ResponseCandidatesCount, candidates)
		}
		memory += float64(candidates) * context * model.cachePerToken(model.Precision)
	}
	return memory
}

// rank returns the rank of the LoRA adapter that the job trains; 0 when it trains all parameters.
func (s JobSpec) rank() int {
	if s.Config.LoraRank == nil {
		return DefaultLoraRank
	}
	return *s.Config.LoraRank
}

// shape returns the number of layers and the width of a transformer, estimated as in cachePerToken
// if the layers are unknown: 12·layers·width² parameters.
func (m ModelSize) shape() (layers, width float64) {
	layers = float64(m.Layers)
	if layers == 0 {
		const perLayer = 128
		layers = math.Cbrt(float64(m.ParameterCount) / (12 * perLayer * perLayer))
	}
	return layers, math.Sqrt(float64(m.ParameterCount) / (12 * layers))
}
