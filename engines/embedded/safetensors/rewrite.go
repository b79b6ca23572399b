package safetensors

import (
	"bufio"
	"io"
	"math"
)

// A Change changes the values of a tensor in place.
type Change func(t Info, values []float32) error

// Rewrite writes a copy of the file with changed values to w, and returns the number of bytes.
// change returns the change of a tensor; nil for none. The header and all other tensors stay the
// same. One tensor is in memory at a time. Rewrite returns FailedPrecondition if a tensor to change
// is stored in 8 bits, or if its type cannot represent a changed value. It calls stop before each
// tensor, and returns stop's error.
func (f *File) Rewrite(w io.Writer, change func(name string) Change, stop func() error) (written int64, err error) {
	out := bufio.NewWriterSize(w, 1<<20)
	n, err := io.Copy(out, io.NewSectionReader(f.data, 0, f.start))
	if err != nil {
		return n, err
	}
	written = n
	for _, e := range f.inOrder() {
		if err := stop(); err != nil {
			return written, err
		}
		if by := change(e.Name); by != nil {
			err = f.rewrite(out, e, by)
		} else {
			_, err = io.Copy(out, io.NewSectionReader(f.data, f.start+e.begin, e.end-e.begin))
		}
		if err != nil {
			return written, err
		}
		written += e.end - e.begin
	}
	return written, out.Flush()
}

// rewrite writes the values of the tensor e to w after it has applied change to them.
func (f *File) rewrite(w io.Writer, e entry, change Change) error {
	if e.DType.Eight() {
		return f.invalid("tensor %s is stored in 8 bits, and cannot be changed without rounding it again: use a copy of the "+
			"model in BF16 or FP16", e.Name)
	}
	values := make([]float32, e.Count())
	if err := f.Read(values, e.Name, e.Shape...); err != nil {
		return err
	}
	if err := change(e.Info, values); err != nil {
		return err
	}
	const limit = 1 << 16 // number of values that are encoded at a time
	chunk := make([]byte, 0, 4*limit)
	for len(values) > 0 {
		n := min(len(values), limit)
		for _, v := range values[:n] {
			if e.DType == F16 && math.Abs(float64(v)) > maxHalf {
				return f.invalid("tensor %s has the value %g after the change, and F16 represents numbers up to %d: use a copy of "+
					"the model in BF16", e.Name, v, maxHalf)
			}
		}
		if _, err := w.Write(encode(chunk[:0], values[:n], e.DType)); err != nil {
			return err
		}
		values = values[n:]
	}
	return nil
}

// maxHalf is the greatest number that F16 can represent.
const maxHalf = 65504
