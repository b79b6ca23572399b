package weights

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

// DTypes maps each precision that Convert can write to its number type in safetensors files.
var DTypes = map[string]string{"BF16": "BF16", "FP16": "F16", "FP8": float8}

// torchTypes maps number types of safetensors files to their names in config.json.
var torchTypes = map[string]string{"BF16": "bfloat16", "F16": "float16"}

// convertible lists the number types that Convert changes. Numbers of other types, such as
// integers, stay unchanged.
var convertible = []string{"F32", "BF16", "F16"}

// chunk is the number of bytes of a file that are converted at a time.
const chunk = 1 << 18

// A conversion describes how one tensor is converted.
type conversion struct {
	from, to Tensor
	factors  bool // the tensor is converted to 8 bits per number, and its scale factors follow it
}

// Convert writes the safetensors file with this name to w, with its numbers converted to dtype:
// BF16 or F16, or F8_E4M3 for projections, rounded to nearest, ties to even. It holds only the
// header and one chunk or row in memory. added are the names of the tensors with scale factors that
// Convert adds. When the file is invalid or has a number that dtype cannot represent, Convert
// returns an error for which IsInvalid reports true. After any error the caller must discard the
// written output.
func (f Directory) Convert(w io.Writer, name, dtype string) (added []string, err error) {
	h, err := f.ReadHeader(name)
	if err != nil {
		return nil, err
	}
	plan, tensors, err := planConversion(h, dtype)
	if err != nil {
		return nil, err
	}
	if err := writeHeader(w, tensors, h.Metadata); err != nil {
		return nil, err
	}
	content, err := f.Open(name, h.Start, -1)
	if err != nil {
		return nil, err
	}
	for _, one := range plan {
		if one.factors {
			added = append(added, one.from.Name+scaleSuffix)
			err = quantize(w, content, one.from)
		} else {
			err = convertTensor(w, content, one.from, one.to.DType)
		}
		if err != nil {
			return nil, errors.Join(err, content.Close())
		}
	}
	return added, content.Close()
}

// planConversion returns the conversion of each tensor of h to dtype, and the tensors of the
// converted file.
func planConversion(h Header, dtype string) (plan []conversion, tensors []Tensor, err error) {
	var at, changed, kept int64
	place := func(t Tensor) Tensor {
		t.Begin, t.End = at, at+t.Count()*widths[t.DType]
		at = t.End
		tensors = append(tensors, t)
		return t
	}
	for _, t := range h.Tensors {
		one := conversion{from: t, to: t}
		switch {
		case !slices.Contains(convertible, t.DType):
			kept += t.Count()
		case dtype != float8:
			one.to.DType, changed = dtype, changed+t.Count()
		case isQuantizable(t):
			one.to.DType, one.factors, changed = dtype, true, changed+t.Count()
		}
		one.to = place(one.to)
		if one.factors {
			place(Tensor{Name: t.Name + scaleSuffix, DType: "F32", Shape: []int64{t.Shape[0], 1}})
		}
		plan = append(plan, one)
	}
	switch {
	case kept > changed:
		return nil, nil, invalidf(
			"%d of %d numbers have types that cannot be converted: only F32, BF16 and F16 can", kept,
			kept+changed)
	case len(tensors) > maxTensors:
		return nil, nil, invalidf("has more than %d tensors after conversion", maxTensors)
	}
	return plan, tensors, nil
}

// writeHeader writes the header of a safetensors file and its length. It pads the header with
// spaces, so that the tensors begin at a multiple of 8 bytes.
func writeHeader(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	var header bytes.Buffer
	header.WriteByte('{')
	if metadata != nil {
		text, err := json.Marshal(metadata)
		if err != nil {
			return err
		}
		fmt.Fprintf(&header, `"__metadata__":%s,`, text)
	}
	for i, t := range tensors {
		name, err := json.Marshal(t.Name)
		if err != nil {
			return err
		}
		shape, err := json.Marshal(append([]int64{}, t.Shape...))
		if err != nil {
			return err
		}
		if i > 0 {
			header.WriteByte(',')
		}
		fmt.Fprintf(&header, `%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, t.DType, shape, t.Begin, t.End)
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	if err := binary.Write(w, binary.LittleEndian, uint64(header.Len())); err != nil {
		return err
	}
	_, err := w.Write(header.Bytes())
	return err
}

// convertTensor reads the numbers of one tensor from r and writes them to w as dtype.
func convertTensor(w io.Writer, r io.Reader, t Tensor, dtype string) error {
	if t.DType == dtype || !slices.Contains(convertible, t.DType) {
		_, err := io.CopyN(w, r, t.End-t.Begin)
		return err
	}
	width := int(widths[t.DType])
	in := make([]byte, min(chunk, t.End-t.Begin))
	numbers, out := make([]float32, len(in)/width), make([]byte, 2*len(in)/width)
	for left := t.End - t.Begin; left > 0; left -= int64(len(in)) {
		in = in[:min(left, int64(len(in)))]
		if _, err := io.ReadFull(r, in); err != nil {
			return err
		}
		numbers, out = numbers[:len(in)/width], out[:2*len(in)/width]
		widen(numbers, in, t.DType)
		if i := narrow(out, numbers, dtype); i >= 0 {
			return invalidf("the tensor %s contains %g, which is too large for %s: prepare the model in BF16 instead",
				quoted(t.Name),
				numbers[i], dtype)
		}
		if _, err := w.Write(out); err != nil {
			return err
		}
	}
	return nil
}

// widen decodes numbers of type dtype to float32.
func widen(dst []float32, src []byte, dtype string) {
	switch dtype {
	case "F32":
		for i := range dst {
			dst[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
		}
	case "BF16":
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(src[2*i:])) << 16)
		}
	default:
		for i := range dst {
			dst[i] = FromHalf(binary.LittleEndian.Uint16(src[2*i:]))
		}
	}
}

// narrow encodes float32 numbers as dtype. It returns the index of the first finite number that is
// too large for dtype; -1 if there is none.
func narrow(to []byte, from []float32, dtype string) int {
	round, infinite := toBfloat, uint16(0x7f80)
	if dtype == "F16" {
		round, infinite = ToHalf, 0x7c00
	}
	for i, v := range from {
		bits := round(v)
		if bits&0x7fff == infinite && !math.IsInf(float64(v), 0) {
			return i
		}
		binary.LittleEndian.PutUint16(to[2*i:], bits)
	}
	return -1
}

// toBfloat returns v as bfloat16, the upper half of a float32, rounded to nearest, ties to even.
func toBfloat(v float32) uint16 {
	bits := math.Float32bits(v)
	if v != v {
		return uint16(bits>>16) | 0x40 // a NaN must stay NaN without its low bits
	}
	return uint16((bits + 0x7fff + bits>>16&1) >> 16)
}

// ToHalf returns the IEEE 754 binary16 value that is nearest to v, ties to even; infinity for
// 65,520 and more.
func ToHalf(v float32) uint16 {
	bits := math.Float32bits(v)
	sign, magnitude := uint16(bits>>16&0x8000), bits&0x7fffffff
	switch {
	case magnitude > 0x7f800000: // not a number
		return sign | 0x7e00
	case magnitude >= 0x477ff000: // 65,520 and more become infinity
		return sign | 0x7c00
	case magnitude < 0x38800000: // below 2^-14: a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(magnitude))*0x1p24))
	}
	// Change the bias of the exponent from 127 to 15. A carry of the rounding increments the exponent.
	return sign | uint16((magnitude-0x38000000+0xfff+magnitude>>13&1)>>13)
}

// FromHalf decodes an IEEE 754 binary16 value.
func FromHalf(h uint16) float32 {
	sign, exponent, fraction := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exponent {
	case 0:
		return math.Float32frombits(math.Float32bits(float32(fraction)*0x1p-24) | sign)
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | fraction<<13)
}

// ConvertedConfig returns the content of config.json for weights that Convert wrote as dtype.
func (f Directory) ConvertedConfig(dtype string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := f.readJSON("config.json", maxConfig, &fields); err != nil {
		return nil, err
	}
	if dtype == float8 {
		fields["quantization_config"] = json.RawMessage(quantizationConfig)
	} else {
		name := json.RawMessage(`"` + torchTypes[dtype] + `"`)
		if _, ok := fields["dtype"]; ok {
			fields["dtype"] = name
		}
		if _, ok := fields["torch_dtype"]; ok || fields["dtype"] == nil {
			fields["torch_dtype"] = name
		}
	}
	data, err := json.MarshalIndent(fields, "", "  ")
	return append(data, '\n'), err
}

// ConvertedIndex returns the content of the shard index for converted shards. total is their total
// size in bytes; added are the tensors that Convert has added, by shard.
func (f Directory) ConvertedIndex(total int64, added map[string][]string) ([]byte, error) {
	i, err := f.readIndex()
	if err != nil {
		return nil, err
	}
	if i.Metadata == nil {
		i.Metadata = map[string]json.RawMessage{}
	}
	i.Metadata["total_size"] = json.RawMessage(fmt.Sprint(total))
	for file, tensors := range added {
		for _, tensor := range tensors {
			i.WeightMap[tensor] = file
		}
	}
	data, err := json.MarshalIndent(i, "", "  ")
	return append(data, '\n'), err
}

// IsWeightsFile reports whether a file contains weights, from the end of its name. Such files are
// not copied to a converted copy of a model, except those that WeightFiles returns.
func IsWeightsFile(name string) bool {
	return slices.ContainsFunc([]string{".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx"},
		func(suffix string) bool { return strings.HasSuffix(name, suffix) })
}
