package tinker

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzDecodePass checks that no body makes the decoder panic, and that an accepted request survives
// both forms.
func FuzzDecodePass(f *testing.F) {
	pass := somePass()
	f.Add(pass.MarshalProto(), true, false)
	f.Add([]byte(jsonPass), false, false)
	f.Add([]byte(`{"model_id":"m","seq_id":1,"forward_input":{"data":[{}],"loss_fn":"ppo"}}`), false, true)
	f.Fuzz(func(t *testing.T, body []byte, protobuf, forward bool) {
		contentType := ""
		if protobuf {
			contentType = ContentTypeProtobuf
		}
		r, err := DecodePass(contentType, body, forward)
		if err != nil {
			require.NotEmpty(t, violations(t, err))
			return
		}
		want, err := r.Pass()
		require.NoError(t, err)
		again, err := DecodePass(ContentTypeProtobuf, r.MarshalProto(), false)
		require.NoError(t, err)
		require.Equal(t, r.MarshalProto(), again.MarshalProto())
		got, err := again.Pass()
		require.NoError(t, err)
		require.Equal(t, len(want.Data), len(got.Data))
	})
}

// FuzzDecodeRequest decodes a body as each type of request.
func FuzzDecodeRequest(f *testing.F) {
	f.Add([]byte(`{"tags":[],"user_metadata":{},"sdk_version":"1"}`))
	f.Add([]byte(`{"prompt":{"chunks":[{"tokens":[1]}]},"sampling_params":{"stop":[1],"seed":-1},"base_model":"m"}`))
	f.Add([]byte(`{"model_id":"m","seq_id":1,"path":"tinker://r/weights/f","optimizer":true}`))
	f.Add([]byte(`{"model_id":"m","seq_id":1,"adam_params":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, err := range []error{decode[CreateSessionRequest](string(body)), decode[CreateModelRequest](string(body)),
			decode[OptimStepRequest](string(body)), decode[SaveWeightsRequest](string(body)),
			decode[SaveWeightsForSamplerRequest](string(body)), decode[LoadWeightsRequest](string(body)),
			decode[FutureRequest](string(body)), decode[TelemetryRequest](string(body)), decode[TTLRequest](string(body)),
			decode[CreateSamplingSessionRequest](string(body)), decode[WeightsInfoRequest](string(body))} {
			if err != nil {
				require.NotEmpty(t, violations(t, err))
			}
		}
		r, err := Decode[SampleRequest](body)
		if err != nil {
			return
		}
		_, err = r.Sample("", 0)
		require.NoError(t, err)
		encoded, err := json.Marshal(r)
		require.NoError(t, err)
		again, err := Decode[SampleRequest](encoded)
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

// FuzzResults checks that no result makes a client panic.
func FuzzResults(f *testing.F) {
	out := ForwardBackwardOutput{LossFnOutputs: []map[string]Tensor{{Logprobs: NewFloats([]float32{1, 2})}}}
	f.Add(out.MarshalProto())
	sample := SampleResponse{Sequences: []SampledSequence{{Tokens: []int32{1}}},
		TopKPromptLogprobs: &TopKPromptLogprobs{K: 1, PromptLength: 1, TokenIDs: []int32{1}, Logprobs: []float32{1}}}
	f.Add(sample.MarshalProto())
	f.Fuzz(func(t *testing.T, body []byte) {
		var o ForwardBackwardOutput
		if o.UnmarshalProto(body) == nil {
			_, err := json.Marshal(o)
			require.NoError(t, err)
			o.MarshalProto()
		}
		var s SampleResponse
		if s.UnmarshalProto(body) == nil {
			encoded, err := json.Marshal(s)
			require.NoError(t, err)
			require.NoError(t, json.Unmarshal(encoded, &s))
		}
	})
}
