package engines

import "anneal/domain"

// A TrainOperation is one operation of a training run or of a sampling session, independent of the
// protocol in which a client sent it. Exactly one field is set.
type TrainOperation struct {
	Forward         *TrainPass
	ForwardBackward *TrainPass
	Step            *AdamParams
	Save            *TrainSave // saves the complete state of the run
	SaveSampler     *TrainSave // saves the adapter for sampling
	Load            *TrainLoad // restores a saved state; only the first operation of a run
	Unload          *struct{}  // ends the run
	Sample          *TrainSampleRequest
}

// A TrainSave says how a state of a run is saved.
type TrainSave struct {
	Name       string // name of the checkpoint
	Ephemeral  bool   // whether it is not listed, and deleted after newer ephemeral checkpoints
	TTLSeconds int64  // seconds after which it expires; 0 stands for never
	Overwrite  bool   // whether it may replace a checkpoint with the same name
}

// A TrainLoad says which state of a run is restored.
type TrainLoad struct {
	Checkpoint string // prefix of the files of the checkpoint in the bucket
	Optimizer  bool   // restore the optimizer too; otherwise it begins again
}

// A TrainOperationResult is the result of an operation that has succeeded. At most one field is
// set.
type TrainOperationResult struct {
	Pass    *TrainPassResult
	Step    *TrainStepResult
	Saved   *TrainSaved
	Samples *TrainSamples
}

// A TrainSaved describes a checkpoint that an operation has saved.
type TrainSaved struct {
	Name  string
	Files domain.Files
	Steps int // number of steps that the run had taken
}

// Names of the fields of TrainOperation, for TrainOperation.Kind.
const (
	TrainForward         = "forward"
	TrainForwardBackward = "forward_backward"
	TrainStep            = "optim_step"
	TrainSaveState       = "save_weights"
	TrainSaveSampler     = "save_weights_for_sampler"
	TrainLoadState       = "load_weights"
	TrainUnload          = "unload_model"
	TrainSampleKind      = "sample"
)

// Kind returns the name of the field that is set; "" unless exactly one is.
func (o TrainOperation) Kind() (kind string) {
	set := 0
	for _, field := range []struct {
		name string
		set  bool
	}{
		{TrainForward, o.Forward != nil}, {TrainForwardBackward, o.ForwardBackward != nil}, {TrainStep, o.Step != nil},
		{TrainSaveState, o.Save != nil}, {TrainSaveSampler, o.SaveSampler != nil}, {TrainLoadState, o.Load != nil},
		{TrainUnload, o.Unload != nil}, {TrainSampleKind, o.Sample != nil},
	} {
		if field.set {
			kind, set = field.name, set+1
		}
	}
	if set != 1 {
		return ""
	}
	return kind
}

// Encode returns the operation in a binary format that keeps all bits of its numbers.
func (o TrainOperation) Encode() ([]byte, error) {
	if o.Kind() == "" {
		return nil, domain.Errorf(domain.Internal, "encode training operation: exactly one field must be set")
	}
	return encodeTrain(operationMagic, &o, (*trainCodec).operation), nil
}

// DecodeTrainOperation returns the operation that TrainOperation.Encode encoded.
func DecodeTrainOperation(data []byte) (TrainOperation, error) {
	o, err := decodeTrain(operationMagic, data, (*trainCodec).operation)
	if err == nil && o.Kind() == "" {
		err = errDamagedTrain
	}
	return o, err
}

// Encode returns the result in a binary format that keeps all bits of its numbers.
func (r TrainOperationResult) Encode() ([]byte, error) {
	return encodeTrain(resultMagic, &r, (*trainCodec).result), nil
}

// DecodeTrainOperationResult returns the result that TrainOperationResult.Encode encoded.
func DecodeTrainOperationResult(data []byte) (TrainOperationResult, error) {
	return decodeTrain(resultMagic, data, (*trainCodec).result)
}

// The first bytes of encoded operations and results name the format and its version.
const (
	operationMagic = "anneal train operation 1\n"
	resultMagic    = "anneal train result 1\n"
)

func (c *trainCodec) operation(o *TrainOperation) {
	optional(c, &o.Forward, (*trainCodec).pass)
	optional(c, &o.ForwardBackward, (*trainCodec).pass)
	optional(c, &o.Step, (*trainCodec).adam)
	optional(c, &o.Save, (*trainCodec).save)
	optional(c, &o.SaveSampler, (*trainCodec).save)
	optional(c, &o.Load, func(c *trainCodec, l *TrainLoad) {
		c.text(&l.Checkpoint)
		c.bool(&l.Optimizer)
	})
	optional(c, &o.Unload, func(*trainCodec, *struct{}) {})
	optional(c, &o.Sample, (*trainCodec).sample)
}

func (c *trainCodec) pass(p *TrainPass) {
	c.text((*string)(&p.Loss))
	optional(c, &p.ClipLow, (*trainCodec).float)
	optional(c, &p.ClipHigh, (*trainCodec).float)
	optional(c, &p.Beta, (*trainCodec).float)
	slice(c, &p.Data, minDatum, func(c *trainCodec, d *TrainDatum) {
		c.int32s(&d.Tokens)
		c.int32s(&d.Targets)
		c.float32s(&d.Weights)
		c.float32s(&d.Advantages)
		c.float32s(&d.Logprobs)
	})
}

func (c *trainCodec) adam(a *AdamParams) {
	for _, v := range []*float64{&a.LearningRate, &a.Beta1, &a.Beta2, &a.Epsilon, &a.WeightDecay, &a.GradClipNorm} {
		c.float(v)
	}
}

func (c *trainCodec) save(s *TrainSave) {
	c.text(&s.Name)
	c.bool(&s.Ephemeral)
	c.int64(&s.TTLSeconds)
	c.bool(&s.Overwrite)
}

func (c *trainCodec) sample(s *TrainSampleRequest) {
	c.text(&s.Weights)
	c.int32s(&s.Prompt)
	c.int(&s.N)
	c.int(&s.MaxTokens)
	c.float(&s.Temperature)
	c.int(&s.TopK)
	c.float(&s.TopP)
	c.uint64(&s.Seed)
	c.int32s(&s.StopTokens)
	slice(c, &s.StopTexts, minText, (*trainCodec).text)
	c.bool(&s.PromptLogprobs)
	c.int(&s.TopKPromptLogprobs)
}

func (c *trainCodec) result(r *TrainOperationResult) {
	optional(c, &r.Pass, func(c *trainCodec, p *TrainPassResult) {
		slice(c, &p.Outputs, minOutput, func(c *trainCodec, o *TrainOutput) {
			c.float32s(&o.Logprobs)
			c.float32s(&o.Losses)
		})
		c.metrics(&p.Metrics)
	})
	optional(c, &r.Step, func(c *trainCodec, s *TrainStepResult) {
		c.int(&s.Step)
		c.float(&s.GradNorm)
	})
	optional(c, &r.Saved, func(c *trainCodec, s *TrainSaved) {
		c.text(&s.Name)
		c.files(&s.Files)
		c.int(&s.Steps)
	})
	optional(c, &r.Samples, func(c *trainCodec, s *TrainSamples) {
		slice(c, &s.Sequences, minSequence, func(c *trainCodec, q *TrainSequence) {
			c.int32s(&q.Tokens)
			c.float32s(&q.Logprobs)
			c.bool(&q.Stopped)
		})
		c.float32s(&s.PromptLogprobs)
		c.int32s(&s.TopKTokens)
		c.float32s(&s.TopKLogprobs)
		c.int(&s.CachedTokens)
	})
}
