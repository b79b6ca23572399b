package tinker

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
)

// A fieldFact is a field of a public message: its number, and its type, which is a scalar type or
// the name of a message. "[]" marks repeated fields, "map" maps from texts, "?" fields with
// presence and "|" members of a oneof.
type fieldFact struct {
	name   string
	number int32
	kind   string
}

var messageFacts = map[string][]fieldFact{
	"SampleResponse": {{"sequences", 1, "[]SampledSequence"}, {"prompt_logprobs", 2, "?bytes"},
		{"topk_prompt_logprobs", 3, "?TopkPromptLogprobs"}, {"prompt_cache_hit_tokens", 4, "int32"}},
	"SampledSequence": {{"stop_reason", 1, "int32"}, {"tokens", 2, "bytes"}, {"logprobs", 3, "?bytes"}},
	"TopkPromptLogprobs": {{"token_ids", 1, "bytes"}, {"logprobs", 2, "bytes"}, {"k", 3, "uint32"},
		{"prompt_length", 4, "uint32"}},
	"SparseCsr": {{"values", 1, "bytes"}, {"crow_indices", 2, "bytes"}, {"col_indices", 3, "bytes"}},
	"Tensor":    {{"dense", 1, "|bytes"}, {"sparse_csr", 2, "|SparseCsr"}, {"dtype", 3, "int32"}, {"shape", 4, "[]int64"}},
	"BatchedTensor": {{"data", 1, "bytes"}, {"offsets", 2, "bytes"}, {"dtype", 3, "int32"},
		{"trailing_shape", 4, "[]int64"}},
	"ArrayRecord": {{"type_tag", 1, "string"}, {"fields", 2, "mapBatchedTensor"}, {"num_datums", 3, "int64"}},
	"ForwardBackwardOutput": {{"loss_fn_output_type", 1, "string"}, {"loss_fn_outputs", 2, "[]ArrayRecord"},
		{"metrics", 3, "mapdouble"}},
	"ForwardBackwardRequest": {{"model_id", 1, "string"}, {"seq_id", 2, "int32"}, {"data", 3, "[]Datum"},
		{"loss_fn", 4, "string"}, {"loss_fn_config", 5, "mapdouble"}, {"forward_only", 6, "bool"}},
	"Datum":            {{"model_input", 1, "[]Chunk"}, {"loss_fn_inputs", 2, "mapTensor"}},
	"Chunk":            {{"encoded_text", 1, "|EncodedTextChunk"}, {"image", 2, "|ImageChunk"}, {"dmel", 3, "|DmelChunk"}},
	"EncodedTextChunk": {{"tokens", 1, "bytes"}},
	"ImageChunk":       {{"data", 1, "bytes"}, {"format", 2, "string"}, {"expected_tokens", 3, "?int32"}},
	"DmelChunk":        {{"dmel", 1, "bytes"}},
}

var scalarTypes = map[string]descriptorpb.FieldDescriptorProto_Type{
	"string": descriptorpb.FieldDescriptorProto_TYPE_STRING, "bytes": descriptorpb.FieldDescriptorProto_TYPE_BYTES,
	"int32": descriptorpb.FieldDescriptorProto_TYPE_INT32, "int64": descriptorpb.FieldDescriptorProto_TYPE_INT64,
	"uint32": descriptorpb.FieldDescriptorProto_TYPE_UINT32, "bool": descriptorpb.FieldDescriptorProto_TYPE_BOOL,
	"double": descriptorpb.FieldDescriptorProto_TYPE_DOUBLE,
}

// publicMessages returns the descriptors of the facts. They are not registered.
func publicMessages(t *testing.T) protoreflect.MessageDescriptors {
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("facts.proto"), Package: proto.String("facts"),
		Syntax: proto.String("proto3")}
	for name, fields := range messageFacts {
		file.MessageType = append(file.MessageType, messageOf(name, fields))
	}
	out, err := protodesc.NewFile(file, nil)
	require.NoError(t, err)
	return out.Messages()
}

func messageOf(name string, fields []fieldFact) *descriptorpb.DescriptorProto {
	m := &descriptorpb.DescriptorProto{Name: proto.String(name)}
	for _, fact := range fields {
		f := &descriptorpb.FieldDescriptorProto{Name: proto.String(fact.name), Number: proto.Int32(fact.number)}
		f.Label = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()
		kind := fact.kind
		oneof := func(name string) {
			m.OneofDecl = append(m.OneofDecl, &descriptorpb.OneofDescriptorProto{Name: proto.String(name)})
			f.OneofIndex = proto.Int32(int32(len(m.OneofDecl) - 1))
		}
		switch {
		case kind[0] == '?':
			kind, f.Proto3Optional = kind[1:], proto.Bool(true)
			oneof("_" + fact.name)
		case kind[0] == '|' && len(m.OneofDecl) == 0:
			kind = kind[1:]
			oneof("choice")
		case kind[0] == '|':
			kind, f.OneofIndex = kind[1:], proto.Int32(0)
		case kind[0] == '[':
			kind, f.Label = kind[2:], descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		case kind[0] == 'm':
			value := messageOf(entryName(fact.name), []fieldFact{{"key", 1, "string"}, {"value", 2, kind[3:]}})
			value.Options = &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)}
			m.NestedType = append(m.NestedType, value)
			kind, f.Label = name+"."+entryName(fact.name), descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
		}
		if scalar, ok := scalarTypes[kind]; ok {
			f.Type = scalar.Enum()
		} else {
			f.Type, f.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String(".facts."+kind)
		}
		m.Field = append(m.Field, f)
	}
	return m
}

// entryName returns the name that protobuf requires of the entries of a map.
func entryName(field string) string {
	out, upper := "", true
	for _, r := range field {
		switch {
		case r == '_':
			upper = true
			continue
		case upper:
			r -= 'a' - 'A'
		}
		out, upper = out+string(r), false
	}
	return out + "Entry"
}

func newMessage(all protoreflect.MessageDescriptors, name string) *dynamicpb.Message {
	return dynamicpb.NewMessage(all.ByName(protoreflect.Name(name)))
}

func field(m protoreflect.Message, name string) protoreflect.FieldDescriptor {
	return m.Descriptor().Fields().ByName(protoreflect.Name(name))
}

func bytesOf(values any) []byte {
	out, err := binary.Append(nil, binary.LittleEndian, values)
	if err != nil {
		panic(err)
	}
	return out
}

func somePass() ForwardBackwardRequest {
	n := int32(9)
	return ForwardBackwardRequest{ModelID: "run-1", SeqID: 7, ForwardOnly: true, Input: ForwardBackwardInput{
		LossFn: "ppo", LossFnConfig: map[string]float64{ClipLow: 0.9, ClipHigh: 1.1},
		Data: []Datum{{
			ModelInput: ModelInput{Chunks: []Chunk{{Type: EncodedText, Tokens: []int32{1, 2, math.MaxInt32}},
				{Type: Image, Data: []byte("png"), Format: "png", ExpectedTokens: &n}, {Type: DMel, DMel: []byte{0, 255}}}},
			LossFnInputs: map[string]Tensor{TargetTokens: NewInts([]int{2, 3, -1}),
				Weights: {DType: Float32, Shape: []int64{3, 4}, Floats: []float32{1, 2},
					Sparse: &CSR{Rows: []int64{0, 1, 1, 2}, Cols: []int64{1, 3}}}},
		}, {ModelInput: NewModelInput(), LossFnInputs: nil}},
	}}
}

func TestPassesAreThePublicMessages(t *testing.T) {
	all := publicMessages(t)
	pass := somePass()
	m := newMessage(all, "ForwardBackwardRequest")
	require.NoError(t, proto.Unmarshal(pass.MarshalProto(), m))
	requireKnown(t, m)
	require.Equal(t, "run-1", m.Get(field(m, "model_id")).String())
	require.EqualValues(t, 7, m.Get(field(m, "seq_id")).Int())
	require.True(t, m.Get(field(m, "forward_only")).Bool())
	require.Equal(t, "ppo", m.Get(field(m, "loss_fn")).String())
	config := m.Get(field(m, "loss_fn_config")).Map()
	require.InDelta(t, 0.9, config.Get(protoreflect.ValueOfString(ClipLow).MapKey()).Float(), 0)
	datum := m.Get(field(m, "data")).List().Get(0).Message()
	chunks := datum.Get(field(datum, "model_input")).List()
	text := chunks.Get(0).Message().Get(field(chunks.Get(0).Message(), "encoded_text")).Message()
	require.Equal(t, bytesOf([]int32{1, 2, math.MaxInt32}), text.Get(field(text, "tokens")).Bytes())
	image := chunks.Get(1).Message().Get(field(chunks.Get(1).Message(), "image")).Message()
	require.Equal(t, "png", image.Get(field(image, "format")).String())
	require.EqualValues(t, 9, image.Get(field(image, "expected_tokens")).Int())
	inputs := datum.Get(field(datum, "loss_fn_inputs")).Map()
	target := inputs.Get(protoreflect.ValueOfString(TargetTokens).MapKey()).Message()
	require.Equal(t, bytesOf([]int64{2, 3, -1}), target.Get(field(target, "dense")).Bytes())
	require.EqualValues(t, 2, target.Get(field(target, "dtype")).Int())
	sparse := inputs.Get(protoreflect.ValueOfString(Weights).MapKey()).Message()
	require.EqualValues(t, 1, sparse.Get(field(sparse, "dtype")).Int())
	require.EqualValues(t, 4, sparse.Get(field(sparse, "shape")).List().Get(1).Int())
	csr := sparse.Get(field(sparse, "sparse_csr")).Message()
	require.Equal(t, bytesOf([]float32{1, 2}), csr.Get(field(csr, "values")).Bytes())
	require.Equal(t, bytesOf([]int64{0, 1, 1, 2}), csr.Get(field(csr, "crow_indices")).Bytes())
	require.Equal(t, bytesOf([]int64{1, 3}), csr.Get(field(csr, "col_indices")).Bytes())

	// The other way: what a protobuf library writes is decoded to the same request.
	body, err := proto.Marshal(m)
	require.NoError(t, err)
	var again ForwardBackwardRequest
	require.NoError(t, again.unmarshal(body))
	require.Equal(t, pass, again)
}

// requireKnown requires that a message has no unknown fields at any depth.
func requireKnown(t *testing.T, m protoreflect.Message) {
	require.Empty(t, m.GetUnknown(), m.Descriptor().Name())
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.IsMap() && f.MapValue().Message() != nil:
			v.Map().Range(func(_ protoreflect.MapKey, v protoreflect.Value) bool { requireKnown(t, v.Message()); return true })
		case f.IsMap():
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				requireKnown(t, v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsList():
			requireKnown(t, v.Message())
		}
		return true
	})
}

func TestResultsAreThePublicMessages(t *testing.T) {
	all := publicMessages(t)
	out := ForwardBackwardOutput{LossFnOutputType: OutputType, Metrics: map[string]float64{"loss:sum": 10.5},
		LossFnOutputs: []map[string]Tensor{
			{Logprobs: NewFloats([]float32{-0.1, -0.2}), ElementwiseLoss: NewFloats([]float32{1, 2})},
			{Logprobs: NewFloats([]float32{-0.4}), ElementwiseLoss: NewFloats([]float32{4})},
			{Logprobs: {DType: Float32, Shape: []int64{2, 3}, Floats: []float32{1, 2, 3, 4, 5, 6}}},
		}}
	m := newMessage(all, "ForwardBackwardOutput")
	require.NoError(t, proto.Unmarshal(out.MarshalProto(), m))
	requireKnown(t, m)
	records := m.Get(field(m, "loss_fn_outputs")).List()
	require.Equal(t, 2, records.Len(), "data with another trailing shape have a record of their own")
	record := records.Get(0).Message()
	require.EqualValues(t, 2, record.Get(field(record, "num_datums")).Int())
	batch := record.Get(field(record, "fields")).Map().Get(protoreflect.ValueOfString(Logprobs).MapKey()).Message()
	require.Equal(t, bytesOf([]int64{0, 8, 12}), batch.Get(field(batch, "offsets")).Bytes())
	require.Equal(t, bytesOf([]float32{-0.1, -0.2, -0.4}), batch.Get(field(batch, "data")).Bytes())
	body, err := proto.Marshal(m)
	require.NoError(t, err)
	var again ForwardBackwardOutput
	require.NoError(t, again.UnmarshalProto(body))
	require.Equal(t, out, again)

	nan := float32(math.NaN())
	sample := SampleResponse{
		Sequences: []SampledSequence{{StopReasonStop, []int32{1, 2, 3}, []float32{-0.5, -1.25, -2}},
			{StopReasonLength, []int32{7}, []float32{-0.125}}},
		PromptLogprobs: []float32{nan, -0.25}, PromptCacheHitTokens: 3,
		TopKPromptLogprobs: &TopKPromptLogprobs{K: 2, PromptLength: 2, TokenIDs: []int32{0, 0, 11, 12},
			Logprobs: []float32{MaskLogprob, MaskLogprob, -0.1, -0.2}}}
	s := newMessage(all, "SampleResponse")
	require.NoError(t, proto.Unmarshal(sample.MarshalProto(), s))
	requireKnown(t, s)
	require.EqualValues(t, 3, s.Get(field(s, "prompt_cache_hit_tokens")).Int())
	second := s.Get(field(s, "sequences")).List().Get(1).Message()
	require.EqualValues(t, 1, second.Get(field(second, "stop_reason")).Int())
	require.Equal(t, bytesOf([]int32{7}), second.Get(field(second, "tokens")).Bytes())
	top := s.Get(field(s, "topk_prompt_logprobs")).Message()
	require.EqualValues(t, 2, top.Get(field(top, "k")).Uint())
	body, err = proto.Marshal(s)
	require.NoError(t, err)
	var read SampleResponse
	require.NoError(t, read.UnmarshalProto(body))
	require.True(t, math.IsNaN(float64(read.PromptLogprobs[0])))
	read.PromptLogprobs[0], sample.PromptLogprobs[0] = 0, 0
	require.Equal(t, sample, read)
}

// TestNarrowTypesAreWidened uses the types of elements that clients do not send, but the messages
// have.
func TestNarrowTypesAreWidened(t *testing.T) {
	for _, test := range []struct {
		kind   uint64
		values []byte
		want   Tensor
	}{
		{protoFloat32, bytesOf([]float32{1.5}), Tensor{DType: Float32, Floats: []float32{1.5}}},
		{protoInt64, bytesOf([]int64{-2}), Tensor{DType: Int64, Ints: []int64{-2}}},
		{protoInt32, bytesOf([]int32{-2}), Tensor{DType: Int64, Ints: []int64{-2}}},
		{protoBFloat16, bytesOf([]uint16{0x3fc0}), Tensor{DType: Float32, Floats: []float32{1.5}}},
	} {
		var got Tensor
		require.NoError(t, got.setValues(test.kind, test.values))
		require.Equal(t, test.want, got)
		require.Error(t, new(Tensor).setValues(test.kind, test.values[1:]))
	}
	require.Error(t, new(Tensor).setValues(0, nil))
}

func TestDataWithoutOutputsAreCounted(t *testing.T) {
	body := appendBytes(appendText(nil, 1, "T"), 2, appendVarint(appendText(nil, 1, "T"), 3, 3))
	var out ForwardBackwardOutput
	require.NoError(t, out.UnmarshalProto(body))
	require.Equal(t, []map[string]Tensor{{}, {}, {}}, out.LossFnOutputs)
	require.NoError(t, out.UnmarshalProto(appendDoubles(nil, 3, map[string]float64{"loss:sum": 0})))
	require.Equal(t, ForwardBackwardOutput{LossFnOutputType: OutputType, LossFnOutputs: []map[string]Tensor{},
		Metrics: map[string]float64{"loss:sum": 0}}, out)
}
