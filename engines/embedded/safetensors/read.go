package safetensors

import (
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
)

// maxHeader is the maximum size of the header in bytes. The format's reference implementation has
// the same limit.
const maxHeader = 100 << 20

// A File is an open safetensors file. Its tensors are read on demand. It is safe for concurrent
// use.
type File struct {
	name     string // name of the file, for errors
	data     io.ReaderAt
	start    int64 // offset of the first tensor's values
	entries  map[string]entry
	metadata map[string]string
	close    func() error
}

// An entry is a tensor in the header, with the range of its bytes after the header.
type entry struct {
	Info
	begin, end int64
}

// Open opens a file and validates its header. It returns FailedPrecondition if the file is missing
// or invalid.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s is missing from the model directory", filepath.Base(path))
	}
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file, err := read(filepath.Base(path), f, info.Size())
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	file.close = f.Close
	return file, nil
}

// Close closes the file.
func (f *File) Close() error { return f.close() }

// Tensors returns the tensors of the file, sorted by name.
func (f *File) Tensors() []Info {
	var out []Info
	for _, name := range slices.Sorted(maps.Keys(f.entries)) {
		out = append(out, f.entries[name].Info)
	}
	return out
}

// Metadata returns the metadata of the header.
func (f *File) Metadata() map[string]string { return f.metadata }

// Lookup returns the type and the shape of a tensor; false if the file does not have the tensor.
func (f *File) Lookup(name string) (Info, bool) {
	e, ok := f.entries[name]
	return e.Info, ok
}

// Read reads the values of a tensor into dst, row by row. The product of shape must be len(dst). It
// returns FailedPrecondition if the file does not have the tensor, or if the tensor has another
// shape.
func (f *File) Read(dst []float32, name string, shape ...int) (err error) {
	whole := dst
	e, ok := f.entries[name]
	if !ok {
		return f.invalid("tensor %s is missing", name)
	}
	if !e.Is(shape...) {
		return f.invalid("tensor %s has shape %v; the model's configuration needs %v", name, e.Shape, shape)
	}
	if e.Count() != len(dst) {
		return fmt.Errorf("tensor %s has %d values, but the buffer has %d", name, e.Count(), len(dst))
	}
	if e.DType.Eight() {
		defer func() {
			if err == nil {
				err = f.dequantize(whole, e)
			}
		}()
	}
	size, at := e.DType.Size(), 0
	chunk := make([]byte, min(len(dst)*size, 1<<20))
	for len(dst) > 0 {
		n := min(len(dst), len(chunk)/size)
		if err := f.bytes(chunk[:n*size], e, at); err != nil {
			return err
		}
		decode(dst[:n], chunk, e.DType)
		dst, at = dst[n:], at+n*size
	}
	return nil
}

// bytes reads len(dst) bytes of the tensor e into dst, from offset within the tensor.
func (f *File) bytes(dst []byte, e entry, offset int) error {
	if _, err := f.data.ReadAt(dst, f.start+e.begin+int64(offset)); err != nil && err != io.EOF {
		return fmt.Errorf("%s: tensor %s: %w", f.name, e.Name, err)
	}
	return nil
}

// ReadQuantized reads the 8-bit values of the matrix name into dst, and returns the scale of each
// row: an element of the matrix is its value times the scale of its row. It returns an error if the
// tensor is not stored in 8 bits, or does not have len(dst) values.
func (f *File) ReadQuantized(dst []byte, name string) (scales []float32, err error) {
	e := f.entries[name]
	if !e.DType.Eight() || e.Count() != len(dst) {
		return nil, fmt.Errorf("tensor %s has type %q and %d values, not %d values of 8 bits",
			name, e.DType, e.Count(), len(dst))
	}
	if scales, err = f.rowScales(e); err != nil {
		return nil, err
	}
	return scales, f.bytes(dst, e, 0)
}

// dequantize multiplies the values of the 8-bit tensor e, which are in matrix, by the scales of
// their rows.
func (f *File) dequantize(matrix []float32, e entry) error {
	scales, err := f.rowScales(e)
	if err != nil {
		return err
	}
	for row, scale := range scales {
		for i := row * e.Shape[1]; i < (row+1)*e.Shape[1]; i++ {
			matrix[i] *= scale
		}
	}
	return nil
}

// rowScales returns the scale of each row of the 8-bit matrix e. The file has the scales in another
// tensor, with one scale for each row or one for the matrix.
func (f *File) rowScales(e entry) ([]float32, error) {
	name := e.Name + "_scale"
	stored, ok := f.entries[name]
	if !ok || stored.DType.Eight() || len(e.Shape) != 2 || stored.Count() != 1 && !stored.Is(e.Shape[0], 1) &&
		!stored.Is(e.Shape[0]) {
		return nil, f.invalid("tensor %s of type %s must be a matrix with scales in %s, one for each row or one for all",
			e.Name, e.DType, name)
	}
	by := make([]float32, e.Shape[0])
	if len(by) == 0 {
		return nil, nil
	}
	if err := f.Read(by[:stored.Count()], name, stored.Shape...); err != nil {
		return nil, err
	}
	for row := stored.Count(); row < len(by); row++ {
		by[row] = by[0]
	}
	return by, nil
}

func (f *File) invalid(format string, args ...any) error {
	return domain.Errorf(domain.FailedPrecondition, "%s: "+format, append([]any{f.name}, args...)...)
}

func read(name string, data io.ReaderAt, size int64) (*File, error) {
	f := &File{name: name, data: data, entries: map[string]entry{}}
	var prefix [8]byte
	if size < 8 {
		return nil, f.invalid("has %d bytes; a safetensors file has at least 8", size)
	}
	if _, err := data.ReadAt(prefix[:], 0); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > maxHeader || int64(length) > size-8 {
		return nil, f.invalid("is not a safetensors file, or is truncated: it claims a header of %d bytes", length)
	}
	header := make([]byte, length)
	if _, err := data.ReadAt(header, 8); err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	f.start = 8 + int64(length)
	return f, f.parse(header, size-f.start)
}

// parse parses the header. size is the number of bytes after the header.
func (f *File) parse(header []byte, size int64) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(header, &fields); err != nil {
		return f.invalid("the header is not JSON: %v", err)
	}
	for name, raw := range fields {
		if name == "__metadata__" {
			if err := json.Unmarshal(raw, &f.metadata); err != nil {
				return f.invalid("__metadata__ must map text to text: %v", err)
			}
			continue
		}
		var described struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &described); err != nil {
			return f.invalid("tensor %s: %v", name, err)
		}
		e := entry{Info{name, described.DType, described.Shape}, described.Offsets[0], described.Offsets[1]}
		if err := f.check(e); err != nil {
			return err
		}
		f.entries[name] = e
	}
	return f.checkPlaces(size)
}

// check returns an error if the type or the shape of a tensor does not match its number of bytes.
func (f *File) check(e entry) error {
	size := int64(e.DType.Size())
	if size == 0 {
		return f.invalid("tensor %s has type %q; F32, BF16, F16, F8_E4M3 and I8 can be read", e.Name, e.DType)
	}
	count := int64(1)
	for _, d := range e.Shape {
		if d < 0 || d > 0 && count > math.MaxInt64/8/int64(d) {
			return f.invalid("tensor %s has the impossible shape %v: a dimension is negative, or the tensor too large", e.Name,
				e.Shape)
		}
		count *= int64(d)
	}
	if e.begin < 0 || e.end-e.begin != count*size {
		return f.invalid("tensor %s of shape %v needs %d bytes; its offsets are %d to %d", e.Name, e.Shape, count*size,
			e.begin, e.end)
	}
	return nil
}

// checkPlaces returns an error unless the tensors fill the size bytes after the header without a
// gap or an overlap.
func (f *File) checkPlaces(size int64) error {
	at := int64(0)
	for _, e := range f.inOrder() {
		if e.begin != at {
			return f.invalid("tensor %s begins at byte %d, but the tensor before it ends at byte %d: the file is "+
				"damaged", e.Name, e.begin, at)
		}
		at = e.end
	}
	if at != size {
		return f.invalid("the tensors need %d bytes, but %d bytes follow the header: the file is truncated or damaged",
			at, size)
	}
	return nil
}

// inOrder returns the tensors in the order of their bytes in the file.
func (f *File) inOrder() []entry {
	return slices.SortedFunc(maps.Values(f.entries), func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end))
	})
}
