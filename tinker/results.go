package tinker

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"anneal/engines"
)

// A ForwardBackwardOutput is the result of a pass.
type ForwardBackwardOutput struct {
	LossFnOutputType string              `json:"loss_fn_output_type"`
	LossFnOutputs    []map[string]Tensor `json:"loss_fn_outputs"` // outputs of the data, in order
	Metrics          map[string]float64  `json:"metrics"`         // see MetricName
}

// OutputType is the type of all outputs.
const OutputType = "ArrayRecord"

// OutputOf converts the result of a pass. perToken is that of TargetsPerToken.
func OutputOf(result *engines.TrainPassResult, perToken []int) ForwardBackwardOutput {
	out := ForwardBackwardOutput{LossFnOutputType: OutputType,
		LossFnOutputs: make([]map[string]Tensor, len(result.Outputs)), Metrics: make(map[string]float64, len(result.Metrics))}
	for i, o := range result.Outputs {
		k := int64(1)
		if i < len(perToken) {
			k = int64(perToken[i])
		}
		tensor := func(values []float32) Tensor {
			t := NewFloats(values)
			if k > 1 {
				t.Shape = []int64{int64(len(values)) / k, k}
			}
			return t
		}
		outputs := map[string]Tensor{Logprobs: tensor(o.Logprobs)}
		if o.Losses != nil {
			outputs[ElementwiseLoss] = tensor(o.Losses)
		}
		out.LossFnOutputs[i] = outputs
	}
	for name, value := range result.Metrics {
		out.Metrics[MetricName(name)] = value
	}
	return out
}

// StepResponse converts the result of a step.
func StepResponse(result engines.TrainStepResult) OptimStepResponse {
	return OptimStepResponse{Metrics: map[string]float64{"step": float64(result.Step), "grad_norm": result.GradNorm}}
}

// Reductions lists the functions with which clients combine the values of a metric of several
// passes.
var Reductions = []string{"sum", "mean", "min", "max", "slack", "unique", "hash_unordered"}

// MetricName returns the name of a metric in the form NAME:REDUCTION that clients require. A name
// without a reduction gets "mean".
func MetricName(name string) string {
	head, reduction, found := strings.Cut(name, ":")
	if found && slices.Contains(Reductions, reduction) {
		return name
	}
	if !found {
		return head + ":mean"
	}
	return strings.ReplaceAll(name, ":", "_") + ":mean"
}

// CombineOutputs combines the results of the passes into which a client divided its data.
func CombineOutputs(parts []ForwardBackwardOutput) ForwardBackwardOutput {
	if len(parts) == 1 {
		return parts[0]
	}
	all := ForwardBackwardOutput{Metrics: map[string]float64{}}
	values := map[string][]float64{}
	for _, part := range parts {
		all.LossFnOutputType = part.LossFnOutputType
		all.LossFnOutputs = append(all.LossFnOutputs, part.LossFnOutputs...)
		for name, value := range part.Metrics {
			values[name] = append(values[name], value)
		}
	}
	for name, list := range values {
		if len(list) == len(parts) {
			if value, ok := reduce(name, list, parts); ok {
				all.Metrics[name] = value
			}
		}
	}
	return all
}

// reduce combines the values of a metric. Means are weighted by the number of data.
func reduce(name string, values []float64, parts []ForwardBackwardOutput) (float64, bool) {
	sum, mean, weights := 0.0, 0.0, 0.0
	for i, value := range values {
		n := float64(len(parts[i].LossFnOutputs))
		sum, mean, weights = sum+value, mean+value*n, weights+n
	}
	if mean /= weights; weights == 0 {
		mean = sum / float64(len(values))
	}
	_, reduction, _ := strings.Cut(name, ":")
	switch reduction {
	case "sum":
		return sum, true
	case "mean":
		return mean, true
	case "min":
		return slices.Min(values), true
	case "max":
		return slices.Max(values), true
	case "slack":
		return slices.Max(values) - mean, true
	case "unique":
		return values[0], true
	}
	return 0, false
}

// MarshalProto returns the protobuf encoding. Consecutive data whose outputs have the same names,
// types and trailing shapes share a record.
func (o *ForwardBackwardOutput) MarshalProto() []byte {
	to := appendText(nil, 1, o.LossFnOutputType)
	for data := o.LossFnOutputs; len(data) > 0; {
		n := 1
		for n < len(data) && sameForm(data[0], data[n]) {
			n++
		}
		to = appendBytes(to, 2, marshalRecord(o.LossFnOutputType, data[:n]))
		data = data[n:]
	}
	return appendDoubles(to, 3, o.Metrics)
}

// sameForm reports whether the outputs of two data have the same names, types and trailing shapes.
func sameForm(a, b map[string]Tensor) bool {
	return maps.EqualFunc(a, b, func(x, y Tensor) bool {
		return x.DType == y.DType && slices.Equal(x.trailing(), y.trailing())
	})
}

// trailing returns the shape without its first dimension.
func (t Tensor) trailing() []int64 {
	if len(t.Shape) < 2 {
		return nil
	}
	return t.Shape[1:]
}

func marshalRecord(tag string, data []map[string]Tensor) []byte {
	to := appendText(nil, 1, tag)
	for _, name := range slices.Sorted(maps.Keys(data[0])) {
		var values []byte
		kind, offsets := int64(protoFloat32), []int64{0}
		for _, d := range data {
			t := d[name]
			if t.DType == Int64 {
				kind, values = protoInt64, appendInt64s(values, t.Ints)
			} else {
				values = appendFloat32s(values, t.Floats)
			}
			offsets = append(offsets, int64(len(values)))
		}
		batch := appendBytes(nil, 1, values)
		batch = appendBytes(batch, 2, appendInt64s(nil, offsets))
		batch = appendShape(appendVarint(batch, 3, kind), 4, data[0][name].trailing())
		to = appendBytes(to, 2, appendBytes(appendText(nil, 1, name), 2, batch))
	}
	return appendVarint(to, 3, int64(len(data)))
}

// UnmarshalProto decodes the protobuf form.
func (o *ForwardBackwardOutput) UnmarshalProto(body []byte) error {
	*o = ForwardBackwardOutput{LossFnOutputs: []map[string]Tensor{}, Metrics: map[string]float64{}}
	err := eachField("ForwardBackwardOutput", body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			o.LossFnOutputType = string(f.bytes)
		case f.is(2, protowire.BytesType):
			data, err := unmarshalRecord(f.bytes)
			o.LossFnOutputs = append(o.LossFnOutputs, data...)
			return err
		case f.is(3, protowire.BytesType):
			key, value, err := f.entry(protowire.Fixed64Type)
			o.Metrics[key] = value.float()
			return err
		}
		return nil // a newer server can have more
	})
	if o.LossFnOutputType == "" {
		o.LossFnOutputType = OutputType
	}
	return err
}

func unmarshalRecord(body []byte) ([]map[string]Tensor, error) {
	fields, count := map[string][]Tensor{}, -1
	err := eachField("ArrayRecord", body, func(f wireField) error {
		switch {
		case f.is(2, protowire.BytesType):
			name, value, err := f.entry(protowire.BytesType)
			if err != nil {
				return err
			}
			fields[name], err = unmarshalBatch(value.bytes)
			return err
		case f.is(3, protowire.VarintType):
			if f.number > MaxDatums {
				return notValid("num_datums must be at most %d, is %d", MaxDatums, f.number)
			}
			count = int(f.number)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for _, tensors := range fields {
		if count < 0 {
			count = len(tensors)
		}
	}
	data := make([]map[string]Tensor, max(0, count))
	for i := range data {
		data[i] = map[string]Tensor{}
		for name, tensors := range fields {
			if len(tensors) != count {
				return nil, notValid("the output %s must have %d data, has %d", quote(name), count, len(tensors))
			}
			data[i][name] = tensors[i]
		}
	}
	return data, nil
}

// unmarshalBatch returns the tensors of a BatchedTensor.
func unmarshalBatch(body []byte) ([]Tensor, error) {
	var values, offsetBytes []byte
	var kind uint64
	var trailing []int64
	err := eachField("BatchedTensor", body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			values = f.bytes
		case f.is(2, protowire.BytesType):
			offsetBytes = f.bytes
		case f.is(3, protowire.VarintType):
			kind = f.number
		case f.num == 4:
			return f.appendInts(&trailing)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	offsets, err := int64sOf("offsets", offsetBytes)
	if err != nil {
		return nil, err
	}
	var tensors []Tensor
	for i := 1; i < len(offsets); i++ {
		if offsets[i-1] < 0 || offsets[i-1] > offsets[i] || offsets[i] > int64(len(values)) {
			return nil, notValid("offsets must ascend from 0 to at most %d, %d follows %d", len(values), offsets[i],
				offsets[i-1])
		}
		var t Tensor
		if err := t.setValues(kind, values[offsets[i-1]:offsets[i]]); err != nil {
			return nil, err
		}
		rows := int64(t.stored())
		for _, d := range trailing {
			if d <= 0 || rows%d != 0 {
				return nil, notValid("the trailing shape %v does not divide %d values", trailing, t.stored())
			}
			rows /= d
		}
		t.Shape = append([]int64{rows}, trailing...)
		tensors = append(tensors, t)
	}
	return tensors, nil
}

// A StopReason says why a sequence ended.
type StopReason string

// The stop reasons.
const (
	StopReasonStop   StopReason = "stop" // a stop token, a stop text or an EOS token
	StopReasonLength StopReason = "length"
)

// A SampleResponse is the result of a SampleRequest.
type SampleResponse struct {
	Sequences            []SampledSequence
	PromptLogprobs       []float32 // NaN for a token without one, such as the first; nil if not requested
	TopKPromptLogprobs   *TopKPromptLogprobs
	PromptCacheHitTokens int
}

// A SampledSequence has the tokens of a sample, including those that stopped it, and their
// log-probabilities under the distribution from which they were sampled.
type SampledSequence struct {
	StopReason StopReason `json:"stop_reason"`
	Tokens     []int32    `json:"tokens"`
	Logprobs   []float32  `json:"logprobs,omitempty"`
}

// TopKPromptLogprobs has the K most likely tokens at each position of the prompt, in row-major
// order. Empty cells have the token 0 and the log-probability MaskLogprob.
type TopKPromptLogprobs struct {
	K, PromptLength int
	TokenIDs        []int32
	Logprobs        []float32
}

// MaskLogprob is the log-probability of an empty cell of TopKPromptLogprobs.
const MaskLogprob = -99999

// MarshalProto returns the protobuf form.
func (r *SampleResponse) MarshalProto() []byte {
	var to []byte
	for _, s := range r.Sequences {
		var sequence []byte
		if s.StopReason == StopReasonLength {
			sequence = appendVarint(nil, 1, 1)
		}
		sequence = appendBytes(sequence, 2, appendInt32s(nil, s.Tokens))
		sequence = appendBytes(sequence, 3, appendFloat32s(nil, s.Logprobs))
		to = appendBytes(to, 1, sequence)
	}
	if r.PromptLogprobs != nil {
		to = appendBytes(to, 2, appendFloat32s(nil, r.PromptLogprobs))
	}
	if k := r.TopKPromptLogprobs; k != nil {
		top := appendBytes(nil, 1, appendInt32s(nil, k.TokenIDs))
		top = appendBytes(top, 2, appendFloat32s(nil, k.Logprobs))
		to = appendBytes(to, 3, appendVarint(appendVarint(top, 3, int64(k.K)), 4, int64(k.PromptLength)))
	}
	return appendVarint(to, 4, int64(r.PromptCacheHitTokens))
}

// UnmarshalProto decodes the protobuf form.
func (r *SampleResponse) UnmarshalProto(body []byte) error {
	*r = SampleResponse{}
	return eachField("SampleResponse", body, func(f wireField) (err error) {
		switch {
		case f.is(1, protowire.BytesType):
			var s SampledSequence
			err = s.unmarshal(f.bytes)
			r.Sequences = append(r.Sequences, s)
		case f.is(2, protowire.BytesType):
			r.PromptLogprobs, err = float32sOf("prompt_logprobs", f.bytes)
		case f.is(3, protowire.BytesType):
			r.TopKPromptLogprobs = new(TopKPromptLogprobs)
			err = r.TopKPromptLogprobs.unmarshal(f.bytes)
		case f.is(4, protowire.VarintType):
			r.PromptCacheHitTokens = int(int32(f.number))
		}
		return err
	})
}

func (s *SampledSequence) unmarshal(body []byte) error {
	s.StopReason = StopReasonStop
	return eachField("SampledSequence", body, func(f wireField) (err error) {
		switch {
		case f.is(1, protowire.VarintType) && f.number <= 1:
			s.StopReason = []StopReason{StopReasonStop, StopReasonLength}[f.number]
		case f.is(1, protowire.VarintType):
			err = notValid("stop_reason must be 0 (stop) or 1 (length), is %d", f.number)
		case f.is(2, protowire.BytesType):
			s.Tokens, err = int32sOf("tokens", f.bytes)
		case f.is(3, protowire.BytesType):
			s.Logprobs, err = float32sOf("logprobs", f.bytes)
		}
		return err
	})
}

func (k *TopKPromptLogprobs) unmarshal(body []byte) error {
	err := eachField("TopkPromptLogprobs", body, func(f wireField) (err error) {
		switch {
		case f.is(1, protowire.BytesType):
			k.TokenIDs, err = int32sOf("token_ids", f.bytes)
		case f.is(2, protowire.BytesType):
			k.Logprobs, err = float32sOf("logprobs", f.bytes)
		case f.is(3, protowire.VarintType):
			k.K = int(f.number)
		case f.is(4, protowire.VarintType):
			k.PromptLength = int(f.number)
		}
		return err
	})
	cells := len(k.TokenIDs)
	if err == nil && (k.K < 0 || k.K > cells || k.PromptLength < 0 || k.PromptLength > cells ||
		k.K*k.PromptLength != cells || len(k.Logprobs) != cells) {
		err = notValid("topk_prompt_logprobs must have %d × %d tokens and log-probabilities, has %d and %d",
			k.PromptLength, k.K, cells, len(k.Logprobs))
	}
	return err
}
