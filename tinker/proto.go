package tinker

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"google.golang.org/protobuf/encoding/protowire"
)

// The protobuf messages belong to the package tinker_public. Arrays are bytes in little-endian
// order: tokens int32, log-probabilities float32, indices and offsets int64.

// A wireField is one field of a message.
type wireField struct {
	message string // name of the message, for errors
	num     protowire.Number
	kind    protowire.Type
	number  uint64 // value of a varint or a fixed64
	bytes   []byte // value of a length-delimited field
}

// eachField calls visit with each field of a message.
func eachField(message string, body []byte, visit func(f wireField) error) error {
	for len(body) > 0 {
		f := wireField{message: message}
		num, kind, n := protowire.ConsumeTag(body)
		if n < 0 {
			return notValid("%s is not valid protobuf: %v", message, protowire.ParseError(n))
		}
		f.num, f.kind, body = num, kind, body[n:]
		switch kind {
		case protowire.VarintType:
			f.number, n = protowire.ConsumeVarint(body)
		case protowire.Fixed64Type:
			f.number, n = protowire.ConsumeFixed64(body)
		case protowire.BytesType:
			f.bytes, n = protowire.ConsumeBytes(body)
		default:
			return f.unknown()
		}
		if n < 0 {
			return notValid("field %d of %s is not valid protobuf: %v", num, message, protowire.ParseError(n))
		}
		body = body[n:]
		if err := visit(f); err != nil {
			return err
		}
	}
	return nil
}

// unknown returns the error for an unknown field. Clients do not send fields with default values,
// so the field requests something that the server does not support.
func (f wireField) unknown() error {
	return notValid("field %d of %s with the wire type %d is not supported: this server has the messages of client "+
		"version 0.25.0; do not use what the client has added since", f.num, f.message, f.kind)
}

// is reports whether the field has the number and the type.
func (f wireField) is(num protowire.Number, kind protowire.Type) bool {
	return f.num == num && f.kind == kind
}

func (f wireField) float() float64 { return math.Float64frombits(f.number) }

// entry returns the key and the value of a field that is an entry of a map.
func (f wireField) entry(valueKind protowire.Type) (key string, value wireField, err error) {
	err = eachField(f.message+" (map entry)", f.bytes, func(e wireField) error {
		switch {
		case e.is(1, protowire.BytesType):
			key = string(e.bytes)
		case e.is(2, valueKind):
			value = e
		default:
			return e.unknown()
		}
		return nil
	})
	return key, value, err
}

// unmarshal decodes a ForwardBackwardRequest.
func (r *ForwardBackwardRequest) unmarshal(body []byte) error {
	const name = "ForwardBackwardRequest"
	return eachField(name, body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			r.ModelID = string(f.bytes)
		case f.is(2, protowire.VarintType):
			r.SeqID = int64(int32(f.number))
		case f.is(3, protowire.BytesType):
			if len(r.Input.Data) == MaxDatums {
				return notValid("data must have at most %d entries: divide the data into several passes", MaxDatums)
			}
			var d Datum
			if err := d.unmarshal(f.bytes); err != nil {
				return err
			}
			r.Input.Data = append(r.Input.Data, d)
		case f.is(4, protowire.BytesType):
			r.Input.LossFn = string(f.bytes)
		case f.is(5, protowire.BytesType):
			key, value, err := f.entry(protowire.Fixed64Type)
			if err != nil {
				return err
			}
			return put(&r.Input.LossFnConfig, "loss_fn_config", key, value.float())
		case f.is(6, protowire.VarintType):
			r.ForwardOnly = f.number != 0
		default:
			return f.unknown()
		}
		return nil
	})
}

// put adds an entry of a map of at most MaxLossInputs.
func put[T any](to *map[string]T, name, key string, value T) error {
	if *to == nil {
		*to = map[string]T{}
	}
	(*to)[key] = value
	if len(*to) > MaxLossInputs {
		return notValid("%s must have at most %d entries", name, MaxLossInputs)
	}
	return nil
}

func (d *Datum) unmarshal(body []byte) error {
	return eachField("Datum", body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			if len(d.ModelInput.Chunks) == MaxChunks {
				return notValid("model_input must have at most %d chunks", MaxChunks)
			}
			var c Chunk
			if err := c.unmarshal(f.bytes); err != nil {
				return err
			}
			d.ModelInput.Chunks = append(d.ModelInput.Chunks, c)
		case f.is(2, protowire.BytesType):
			key, value, err := f.entry(protowire.BytesType)
			if err != nil {
				return err
			}
			var t Tensor
			if err := t.unmarshal(value.bytes); err != nil {
				return err
			}
			return put(&d.LossFnInputs, "loss_fn_inputs", key, t)
		default:
			return f.unknown()
		}
		return nil
	})
}

func (c *Chunk) unmarshal(body []byte) error {
	return eachField("Chunk", body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			*c = Chunk{Type: EncodedText}
			return eachField("EncodedTextChunk", f.bytes, func(f wireField) (err error) {
				if !f.is(1, protowire.BytesType) {
					return f.unknown()
				}
				c.Tokens, err = int32sOf("tokens", f.bytes)
				return err
			})
		case f.is(2, protowire.BytesType):
			*c = Chunk{Type: Image}
			return eachField("ImageChunk", f.bytes, func(f wireField) error {
				switch {
				case f.is(1, protowire.BytesType):
					c.Data = slices.Clone(f.bytes)
				case f.is(2, protowire.BytesType):
					c.Format = string(f.bytes)
				case f.is(3, protowire.VarintType):
					n := int32(f.number)
					c.ExpectedTokens = &n
				default:
					return f.unknown()
				}
				return nil
			})
		case f.is(3, protowire.BytesType):
			*c = Chunk{Type: DMel}
			return eachField("DmelChunk", f.bytes, func(f wireField) error {
				if !f.is(1, protowire.BytesType) {
					return f.unknown()
				}
				c.DMel = slices.Clone(f.bytes)
				return nil
			})
		}
		return f.unknown()
	})
}

// Values of the protobuf enum of element types.
const (
	protoFloat32  = 1
	protoInt64    = 2
	protoInt32    = 3
	protoBFloat16 = 4
)

func (t *Tensor) unmarshal(body []byte) error {
	var values []byte
	var kind uint64
	var sparse CSR
	isSparse := false
	err := eachField("Tensor", body, func(f wireField) error {
		switch {
		case f.is(1, protowire.BytesType):
			values, isSparse = f.bytes, false
		case f.is(2, protowire.BytesType):
			values, isSparse = nil, true
			return eachField("SparseCsr", f.bytes, func(f wireField) (err error) {
				switch {
				case f.is(1, protowire.BytesType):
					values = f.bytes
				case f.is(2, protowire.BytesType):
					sparse.Rows, err = int64sOf("crow_indices", f.bytes)
				case f.is(3, protowire.BytesType):
					sparse.Cols, err = int64sOf("col_indices", f.bytes)
				default:
					return f.unknown()
				}
				return err
			})
		case f.is(3, protowire.VarintType):
			kind = f.number
		case f.num == 4:
			return f.appendInts(&t.Shape)
		default:
			return f.unknown()
		}
		return nil
	})
	if err != nil {
		return err
	}
	if isSparse {
		t.Sparse = &sparse
	}
	return t.setValues(kind, values)
}

// appendInts appends the values of a repeated int64 field, packed or unpacked.
func (f wireField) appendInts(to *[]int64) error {
	switch f.kind {
	case protowire.VarintType:
		*to = append(*to, int64(f.number))
	case protowire.BytesType:
		for body := f.bytes; len(body) > 0; {
			x, n := protowire.ConsumeVarint(body)
			if n < 0 {
				return notValid("field %d of %s is not valid protobuf: %v", f.num, f.message, protowire.ParseError(n))
			}
			*to, body = append(*to, int64(x)), body[n:]
			if len(*to) > MaxLossInputs {
				break
			}
		}
	default:
		return f.unknown()
	}
	if len(*to) > MaxLossInputs {
		return notValid("a shape must have 1 or 2 dimensions, has more than %d", MaxLossInputs)
	}
	return nil
}

// setValues decodes the values of a tensor. kind is the protobuf value of its element type.
func (t *Tensor) setValues(kind uint64, values []byte) (err error) {
	switch kind {
	case protoFloat32:
		t.DType = Float32
		t.Floats, err = float32sOf("float32 values", values)
	case protoInt64:
		t.DType = Int64
		t.Ints, err = int64sOf("int64 values", values)
	case protoInt32:
		t.DType = Int64
		var narrow []int32
		narrow, err = int32sOf("int32 values", values)
		t.Ints = NewInts(narrow).Ints
	case protoBFloat16:
		t.DType = Float32
		if len(values)%2 != 0 {
			return notValid("bfloat16 values must have a multiple of 2 bytes, have %d", len(values))
		}
		t.Floats = make([]float32, len(values)/2)
		for i := range t.Floats {
			t.Floats[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(values[2*i:])) << 16)
		}
	default:
		return notValid("the dtype of a tensor must be 1 (float32), 2 (int64), 3 (int32) or 4 (bfloat16), is %d", kind)
	}
	return err
}

func int32sOf(name string, b []byte) ([]int32, error) {
	if len(b)%4 != 0 {
		return nil, notValid("%s must have a multiple of 4 bytes, have %d", name, len(b))
	}
	out := make([]int32, len(b)/4)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}

func int64sOf(name string, b []byte) ([]int64, error) {
	if len(b)%8 != 0 {
		return nil, notValid("%s must have a multiple of 8 bytes, have %d", name, len(b))
	}
	out := make([]int64, len(b)/8)
	for i := range out {
		out[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return out, nil
}

func float32sOf(name string, b []byte) ([]float32, error) {
	if len(b)%4 != 0 {
		return nil, notValid("%s must have a multiple of 4 bytes, have %d", name, len(b))
	}
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out, nil
}

func appendInt32s(to []byte, values []int32) []byte {
	for _, x := range values {
		to = binary.LittleEndian.AppendUint32(to, uint32(x))
	}
	return to
}

func appendInt64s(to []byte, values []int64) []byte {
	for _, x := range values {
		to = binary.LittleEndian.AppendUint64(to, uint64(x))
	}
	return to
}

func appendFloat32s(to []byte, values []float32) []byte {
	for _, x := range values {
		to = binary.LittleEndian.AppendUint32(to, math.Float32bits(x))
	}
	return to
}

// Encoding. Fields with their default are left out, and entries of maps are in the order of their
// keys, so equal messages have equal bytes.

func appendBytes(to []byte, num protowire.Number, value []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(to, num, protowire.BytesType), value)
}

func appendText(to []byte, num protowire.Number, value string) []byte {
	if value == "" {
		return to
	}
	return protowire.AppendString(protowire.AppendTag(to, num, protowire.BytesType), value)
}

func appendVarint(to []byte, num protowire.Number, value int64) []byte {
	if value == 0 {
		return to
	}
	return protowire.AppendVarint(protowire.AppendTag(to, num, protowire.VarintType), uint64(value))
}

func appendShape(to []byte, num protowire.Number, shape []int64) []byte {
	if len(shape) == 0 {
		return to
	}
	var packed []byte
	for _, d := range shape {
		packed = protowire.AppendVarint(packed, uint64(d))
	}
	return appendBytes(to, num, packed)
}

// appendDoubles appends a map of doubles.
func appendDoubles(to []byte, num protowire.Number, values map[string]float64) []byte {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		entry := appendText(nil, 1, key)
		entry = protowire.AppendFixed64(protowire.AppendTag(entry, 2, protowire.Fixed64Type), math.Float64bits(values[key]))
		to = appendBytes(to, num, entry)
	}
	return to
}

// MarshalProto returns the protobuf encoding. Equal requests have equal bytes.
func (r *ForwardBackwardRequest) MarshalProto() []byte {
	to := appendText(nil, 1, r.ModelID)
	to = appendVarint(to, 2, r.SeqID)
	for i := range r.Input.Data {
		d := &r.Input.Data[i]
		var datum []byte
		for j := range d.ModelInput.Chunks {
			datum = appendBytes(datum, 1, d.ModelInput.Chunks[j].marshal())
		}
		for _, name := range slices.Sorted(maps.Keys(d.LossFnInputs)) {
			t := d.LossFnInputs[name]
			datum = appendBytes(datum, 2, appendBytes(appendText(nil, 1, name), 2, t.marshal()))
		}
		to = appendBytes(to, 3, datum)
	}
	to = appendText(to, 4, r.Input.LossFn)
	to = appendDoubles(to, 5, r.Input.LossFnConfig)
	if r.ForwardOnly {
		to = appendVarint(to, 6, 1)
	}
	return to
}

func (c *Chunk) marshal() []byte {
	switch c.Type {
	case Image:
		image := appendText(appendBytes(nil, 1, c.Data), 2, c.Format)
		if c.ExpectedTokens != nil {
			image = protowire.AppendTag(image, 3, protowire.VarintType)
			image = protowire.AppendVarint(image, uint64(int64(*c.ExpectedTokens)))
		}
		return appendBytes(nil, 2, image)
	case DMel:
		return appendBytes(nil, 3, appendBytes(nil, 1, c.DMel))
	}
	return appendBytes(nil, 1, appendBytes(nil, 1, appendInt32s(nil, c.Tokens)))
}

func (t *Tensor) marshal() []byte {
	kind, values := int64(protoFloat32), appendFloat32s(nil, t.Floats)
	if t.DType == Int64 {
		kind, values = protoInt64, appendInt64s(nil, t.Ints)
	}
	var to []byte
	if t.Sparse != nil {
		csr := appendBytes(nil, 1, values)
		csr = appendBytes(csr, 2, appendInt64s(nil, t.Sparse.Rows))
		csr = appendBytes(csr, 3, appendInt64s(nil, t.Sparse.Cols))
		to = appendBytes(nil, 2, csr)
	} else {
		to = appendBytes(nil, 1, values)
	}
	return appendShape(appendVarint(to, 3, kind), 4, t.Shape)
}
