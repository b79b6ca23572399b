// Package weights reads what a model's files say about themselves, in the
// layouts of Hugging Face and PEFT: configurations, tokenizers and the headers
// of safetensors files. It looks at no number of the weights but to convert
// them, and holds no more of a file than its header.
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

// A Folder is a model's files. Open reads length bytes of a file from offset
// on; a negative length is all that follows.
type Folder struct {
	Sizes map[string]int64 // bytes, by name
	Open  func(name string, offset, length int64) (io.ReadCloser, error)
}

// A Tensor is one entry of a header: Begin and End are its place in bytes after
// the header.
type Tensor struct {
	Name       string
	DType      string
	Shape      []int64
	Begin, End int64
}

// Count is how many numbers the tensor holds.
func (t Tensor) Count() int64 {
	n := int64(1)
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// A Header is what a safetensors file begins with. Tensors stand in the order
// of their places, which fill the file without gap or overlap.
type Header struct {
	Tensors  []Tensor
	Metadata map[string]string
	Start    int64 // of the first tensor in the file, in bytes
}

// Bounds of one header: the format's own reader allows as many bytes.
const (
	maxHeader  = 100_000_000
	maxTensors = 200_000
	maxAxes    = 16
)

// widths are the bytes of one number of each type that the format knows.
var widths = map[string]int64{"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
	"U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}

// A broken error is what is wrong with a file, in words for its owner; any
// other error is trouble with reading it.
type broken struct{ why string }

func (b broken) Error() string { return b.why }

func brokenf(format string, args ...any) error { return broken{fmt.Sprintf(format, args...)} }

// ReadHeader reads the header of a safetensors file. What is wrong with the
// file is an error for which IsBroken holds.
func (f Folder) ReadHeader(name string) (Header, error) {
	size := f.Sizes[name]
	if size < 8 {
		return Header{}, brokenf("has %d bytes, and a safetensors file at least 8", size)
	}
	content, err := f.Open(name, 0, -1)
	if err != nil {
		return Header{}, err
	}
	h, err := readHeader(content, size)
	return h, errors.Join(err, content.Close())
}

// IsBroken tells whether an error is about what a file holds, and not about
// reading it.
func IsBroken(err error) bool {
	var b broken
	return errors.As(err, &b)
}

func readHeader(r io.Reader, size int64) (Header, error) {
	var prefix [8]byte
	if _, err := io.ReadFull(r, prefix[:]); err != nil {
		return Header{}, err
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeader || int64(length) > size-8 {
		return Header{}, brokenf("is no safetensors file, or cut off: its header claims %d bytes", length)
	}
	h := Header{Start: 8 + int64(length)}
	source := &remembering{r: io.LimitReader(r, int64(length))}
	if err := h.parse(json.NewDecoder(source)); err != nil {
		if source.err != nil {
			return h, source.err
		}
		return h, err
	}
	return h, h.checkPlaces(size - h.Start)
}

// remembering keeps the error of its reader, which a JSON decoder hides among
// its own.
type remembering struct {
	r   io.Reader
	err error
}

func (m *remembering) Read(p []byte) (int, error) {
	n, err := m.r.Read(p)
	if err != nil && err != io.EOF {
		m.err = err
	}
	return n, err
}

// parse reads one entry after the other, so that only what is kept is held.
func (h *Header) parse(d *json.Decoder) error {
	if token, err := d.Token(); err != nil || token != json.Delim('{') {
		return brokenf("is no safetensors file: its header is not a JSON object")
	}
	seen := map[string]bool{}
	for d.More() {
		token, err := d.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return brokenf("its header is not JSON")
		}
		if seen[name] {
			return brokenf("has the tensor %s twice", shown(name))
		}
		seen[name] = true
		if name == "__metadata__" {
			if err := d.Decode(&h.Metadata); err != nil {
				return brokenf("its __metadata__ must map text to text")
			}
			continue
		}
		var entry struct {
			DType   string    `json:"dtype"`
			Shape   []int64   `json:"shape"`
			Offsets *[2]int64 `json:"data_offsets"`
		}
		if err := d.Decode(&entry); err != nil || entry.Offsets == nil {
			return brokenf("its header describes the tensor %s not by dtype, shape and data_offsets", shown(name))
		}
		t := Tensor{name, entry.DType, entry.Shape, entry.Offsets[0], entry.Offsets[1]}
		if err := t.check(); err != nil {
			return err
		}
		if h.Tensors = append(h.Tensors, t); len(h.Tensors) > maxTensors {
			return brokenf("has more than %d tensors", maxTensors)
		}
	}
	if _, err := d.Token(); err != nil {
		return brokenf("its header is not JSON")
	}
	return nil
}

// check holds a tensor's type and shape against its length.
func (t Tensor) check() error {
	width := widths[t.DType]
	if width == 0 {
		return brokenf("stores the tensor %s as %s, which is not a type of the format", shown(t.Name), shown(t.DType))
	}
	if len(t.Shape) > maxAxes {
		return brokenf("has the tensor %s with %d axes, and may have %d", shown(t.Name), len(t.Shape), maxAxes)
	}
	count := int64(1)
	for _, d := range t.Shape {
		if d < 0 || d > 0 && count > math.MaxInt64/8/d {
			return brokenf("has the tensor %s with the impossible shape %v", shown(t.Name), t.Shape)
		}
		count *= d
	}
	if t.Begin < 0 || t.End-t.Begin != count*width {
		return brokenf("has the tensor %s of type %s and shape %v, which takes %d bytes, at %d to %d", shown(t.Name), t.DType, t.Shape, count*width, t.Begin, t.End)
	}
	return nil
}

// checkPlaces puts the tensors in order; they must fill the room exactly.
func (h *Header) checkPlaces(room int64) error {
	slices.SortFunc(h.Tensors, func(a, b Tensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for _, t := range h.Tensors {
		if t.Begin != at {
			return brokenf("has the tensor %s at byte %d, where %d was expected", shown(t.Name), t.Begin, at)
		}
		at = t.End
	}
	if at != room {
		return brokenf("has room for %d bytes of tensors, and they take %d: it is cut off or damaged", room, at)
	}
	return nil
}

// shown is a name of somebody else's file, short and in quotes.
func shown(name string) string {
	if len(name) > 120 {
		name = name[:120] + "…"
	}
	return fmt.Sprintf("%q", name)
}
