// Package weights reads model files in the layouts of Hugging Face and PEFT: configurations,
// tokenizers and headers of safetensors files. It reads the weights themselves only to convert
// them, and never holds a whole weight file in memory.
package weights

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// A Directory gives access to the files of a model. Open returns a reader of length bytes of a file
// from an offset; with a negative length, up to the end of the file.
type Directory struct {
	Sizes map[string]int64 // sizes of the files in bytes, by name
	Open  func(name string, offset, length int64) (io.ReadCloser, error)
}

// A Tensor is an entry in the header of a safetensors file. Begin and End are the offsets of its
// numbers in bytes, counted from the end of the header.
type Tensor struct {
	Name       string
	DType      string
	Shape      []int64
	Begin, End int64
}

// Count returns the number of elements of the tensor.
func (t Tensor) Count() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// A Header is the header of a safetensors file. Tensors are ordered by offset and fill the file
// without gaps or overlaps.
type Header struct {
	Tensors  []Tensor
	Metadata map[string]string
	Start    int64 // offset in the file at which the first tensor begins
}

// Limits of the header of a safetensors file. maxHeader is in bytes, and equals the limit of the
// reference implementation.
const (
	maxHeader  = 100_000_000
	maxTensors = 200_000
	maxAxes    = 16
)

// widths maps the number types of safetensors files to their sizes in bytes.
var widths = map[string]int64{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2,
	"F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}

// An invalid error says that the content of a file is invalid, and why. Any other error means that
// the file could not be read.
type invalid struct{ why string }

func (e invalid) Error() string { return e.why }

func invalidf(format string, args ...any) error { return invalid{fmt.Sprintf(format, args...)} }

// ReadHeader reads the header of a safetensors file. IsInvalid reports true for an error in the
// header's content.
func (f Directory) ReadHeader(name string) (Header, error) {
	size := f.Sizes[name]
	if size < 8 {
		return Header{}, invalidf("has %d bytes, but a safetensors file has at least 8", size)
	}
	content, err := f.Open(name, 0, -1)
	if err != nil {
		return Header{}, err
	}
	h, err := readHeader(content, size)
	return h, errors.Join(err, content.Close())
}

// IsInvalid reports whether an error describes invalid content of a file, rather than a failure to
// read it.
func IsInvalid(err error) bool {
	var e invalid
	return errors.As(err, &e)
}

func readHeader(r io.Reader, size int64) (Header, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return Header{}, err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeader || int64(length) > size-8 {
		return Header{}, invalidf("is not a safetensors file, or is truncated: its header claims %d bytes", length)
	}
	h := Header{Start: 8 + int64(length)}
	source := &errorRecorder{r: io.LimitReader(r, int64(length))}
	if err := h.parse(json.NewDecoder(source)); err != nil {
		if source.err != nil {
			return h, source.err
		}
		return h, err
	}
	return h, h.checkOffsets(size - h.Start)
}

// An errorRecorder reads from r and keeps the error of r, because a JSON decoder wraps it.
type errorRecorder struct {
	r   io.Reader
	err error
}

func (e *errorRecorder) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && err != io.EOF {
		e.err = err
	}
	return n, err
}

// parse decodes the JSON of the header into h, one entry after another to save memory.
func (h *Header) parse(d *json.Decoder) error {
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return invalidf("is not a safetensors file: its header is not a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return invalidf("is not a safetensors file: its header is not valid JSON")
		}
		if seen[name] {
			return invalidf("has the tensor %s twice", quoted(name))
		}
		seen[name] = true
		if name == "__metadata__" {
			if err := d.Decode(&h.Metadata); err != nil {
				return invalidf("has a __metadata__ in its header that does not map strings to strings")
			}
			continue
		}
		var entry struct {
			DType   string    `json:"dtype"`
			Shape   []int64   `json:"shape"`
			Offsets *[2]int64 `json:"data_offsets"`
		}
		if err := d.Decode(&entry); err != nil || entry.Offsets == nil {
			return invalidf("lacks dtype, shape or data_offsets of the tensor %s in its header", quoted(name))
		}
		t := Tensor{name, entry.DType, entry.Shape, entry.Offsets[0], entry.Offsets[1]}
		if err := t.check(); err != nil {
			return err
		}
		if h.Tensors = append(h.Tensors, t); len(h.Tensors) > maxTensors {
			return invalidf("has more than %d tensors", maxTensors)
		}
	}
	if _, err := d.Token(); err != nil {
		return invalidf("is not a safetensors file: its header is not valid JSON")
	}
	return nil
}

// check returns an error unless the tensor has as many bytes as its number type and shape require.
func (t Tensor) check() error {
	width := widths[t.DType]
	if width == 0 {
		return invalidf("stores the tensor %s as %s, which is not a number type of safetensors", quoted(t.Name),
			quoted(t.DType))
	}
	if len(t.Shape) > maxAxes {
		return invalidf("has the tensor %s with %d dimensions, but at most %d are allowed", quoted(t.Name), len(t.Shape),
			maxAxes)
	}
	count := int64(1)
	for _, d := range t.Shape {
		if d < 0 || d > 0 && count > math.MaxInt64/8/d {
			return invalidf("has the tensor %s with the invalid shape %v", quoted(t.Name), t.Shape)
		}
		count *= d
	}
	if t.Begin < 0 || t.End-t.Begin != count*width {
		return invalidf("has the tensor %s of type %s and shape %v, which takes %d bytes, but its data_offsets are %d and %d",
			quoted(t.Name),
			t.DType,
			t.Shape, count*width, t.Begin, t.End)
	}
	return nil
}

// checkOffsets sorts the tensors by offset. It returns an error unless they fill size bytes, the
// rest of the file, without gaps or overlaps.
func (h *Header) checkOffsets(size int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at {
			return invalidf("has the tensor %s at byte %d after the header, but the previous tensor ends at byte %d",
				quoted(t.Name), t.Begin, at)
		}
		at = t.End
	}
	if at != size {
		return invalidf("has %d bytes of tensors, but its header describes %d: it is truncated or damaged", size, at)
	}
	return nil
}

// quoted returns a name in quotes, truncated to 120 bytes, for messages.
func quoted(name string) string {
	if len(name) > 120 {
		name = name[:120] + "…"
	}
	return fmt.Sprintf("%q", name)
}
