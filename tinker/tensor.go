package tinker

import (
	"encoding/json"
	"math"
	"slices"
	"strconv"

	"anneal/domain"
)

// A DType is the type of the elements of a tensor.
type DType string

// The element types. Protobuf messages can also have int32 and bfloat16, which are decoded to Int64
// and Float32.
const (
	Float32 DType = "float32"
	Int64   DType = "int64"
)

// A Tensor is a vector or a matrix of numbers in row-major order. A sparse one, in CSR format,
// stores only the values that are not zero.
type Tensor struct {
	DType  DType
	Shape  []int64   // nil stands for one dimension
	Floats []float32 // values if DType is Float32
	Ints   []int64   // values if DType is Int64
	Sparse *CSR      // nil if the tensor is dense
}

// A CSR has the positions of the values of a sparse matrix: those of row i are Cols[Rows[i]] to
// Cols[Rows[i+1]-1].
type CSR struct {
	Rows, Cols []int64
}

// NewFloats returns a tensor with one dimension.
func NewFloats(values []float32) Tensor {
	return Tensor{DType: Float32, Shape: []int64{int64(len(values))}, Floats: values}
}

// NewInts returns a tensor with one dimension.
func NewInts[T int | int32 | int64](values []T) Tensor {
	ints := make([]int64, len(values))
	for i, x := range values {
		ints[i] = int64(x)
	}
	return Tensor{DType: Int64, Shape: []int64{int64(len(values))}, Ints: ints}
}

// stored returns the number of stored values.
func (t *Tensor) stored() int {
	if t.DType == Int64 {
		return len(t.Ints)
	}
	return len(t.Floats)
}

// elements returns the number of elements, with the zeros of a sparse tensor. It returns -1 if the
// shape has a negative dimension or more than MaxPassTargets elements.
func (t *Tensor) elements() int {
	if t.Shape == nil {
		return t.stored()
	}
	n := int64(1)
	for _, d := range t.Shape {
		if d < 0 || d > MaxPassTargets || n*d > MaxPassTargets {
			return -1
		}
		n *= d
	}
	return int(n)
}

// check reports whether the tensor is consistent, and adds violations if not.
func (t *Tensor) check(v *domain.Violations, path string) bool {
	before := len(*v)
	v.Require(t.DType == Float32 || t.DType == Int64, path+".dtype", "must be %q or %q, is %s", Float32, Int64,
		quote(string(t.DType)))
	v.Require(len(t.Shape) <= 2, path+".shape", "must have 1 or 2 dimensions, has %d", len(t.Shape))
	n := t.elements()
	if n < 0 {
		v.Add(path+".shape", "must have dimensions of at least 0 and at most %d elements, is %v", MaxPassTargets, t.Shape)
		return false
	}
	if t.Sparse == nil {
		v.Require(n == t.stored(), path+".shape", "has %d elements, but data has %d values", n, t.stored())
	} else {
		t.Sparse.check(v, path, t.Shape, t.stored())
	}
	return len(*v) == before
}

func (s *CSR) check(v *domain.Violations, path string, shape []int64, stored int) {
	if len(shape) != 2 {
		v.Add(path+".shape", "must have 2 dimensions, because the tensor is sparse; has %d", len(shape))
		return
	}
	rows, cols := shape[0], shape[1]
	v.Require(len(s.Cols) == stored, path+".sparse_col_indices", "must have an index for each of %d values, has %d",
		stored, len(s.Cols))
	for i, col := range s.Cols {
		if col < 0 || col >= cols {
			v.Add(index(path+".sparse_col_indices", i), "must be 0 to %d, is %d", cols-1, col)
			break
		}
	}
	at := path + ".sparse_crow_indices"
	if int64(len(s.Rows)) != rows+1 {
		v.Add(at, "must have %d indices, one more than rows; has %d", rows+1, len(s.Rows))
		return
	}
	v.Require(s.Rows[0] == 0 && s.Rows[rows] == int64(stored) && slices.IsSorted(s.Rows), at,
		"must ascend from 0 to %d, the number of values", stored)
}

// dense returns the values of a tensor that check accepted, with the zeros of a sparse one.
func dense[T float32 | int64](t *Tensor, values []T) []T {
	if t.Sparse == nil {
		return values
	}
	all := make([]T, t.Shape[0]*t.Shape[1])
	for row := range t.Shape[0] {
		for i := t.Sparse.Rows[row]; i < t.Sparse.Rows[row+1]; i++ {
			all[row*t.Shape[1]+t.Sparse.Cols[i]] += values[i]
		}
	}
	return all
}

// tensorJSON is the JSON form of a tensor.
type tensorJSON struct {
	Data  json.RawMessage `json:"data"`
	DType DType           `json:"dtype"`
	Shape []int64         `json:"shape,omitempty"`
	Rows  []int64         `json:"sparse_crow_indices,omitempty"`
	Cols  []int64         `json:"sparse_col_indices,omitempty"`
}

func (t *Tensor) decodeValue(v *domain.Violations, raw json.RawMessage, path string) {
	var form tensorJSON
	before := len(*v)
	decodeInto(v, raw, &form, path)
	if len(*v) > before {
		return
	}
	*t = Tensor{DType: form.DType, Shape: form.Shape}
	if form.Rows != nil || form.Cols != nil {
		t.Sparse = &CSR{Rows: form.Rows, Cols: form.Cols}
	}
	switch {
	case isNull(form.Data):
		v.Add(path+".data", "is required")
	case t.DType == Int64:
		decodeLeaf(v, form.Data, &t.Ints, path+".data")
	case t.DType == Float32:
		decodeLeaf(v, form.Data, &t.Floats, path+".data")
	case t.DType == "": // some older clients send no dtype: integers are Int64
		if json.Unmarshal(form.Data, &t.Ints) == nil {
			t.DType = Int64
		} else if t.Ints = nil; decodeLeaf(v, form.Data, &t.Floats, path+".data") {
			t.DType = Float32
		}
	default:
		v.Add(path+".dtype", "must be %q or %q, is %s", Float32, Int64, quote(string(t.DType)))
	}
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Tensor) UnmarshalJSON(raw []byte) error {
	var v domain.Violations
	t.decodeValue(&v, raw, "tensor")
	return v.Err()
}

// MarshalJSON implements json.Marshaler. Infinities, which JSON cannot represent, become the
// largest finite numbers.
func (t Tensor) MarshalJSON() ([]byte, error) {
	form := tensorJSON{DType: t.DType, Shape: t.Shape}
	if t.Sparse != nil {
		form.Rows, form.Cols = t.Sparse.Rows, t.Sparse.Cols
	}
	if t.DType == Int64 {
		form.Data = []byte{'['}
		for i, x := range t.Ints {
			form.Data = strconv.AppendInt(comma(form.Data, i), x, 10)
		}
		form.Data = append(form.Data, ']')
	} else {
		form.Data = appendFloats(nil, t.Floats)
	}
	return json.Marshal(form)
}

func comma(to []byte, i int) []byte {
	if i > 0 {
		return append(to, ',')
	}
	return to
}

// appendFloats appends a JSON list. NaN becomes null, and infinities the largest finite numbers.
func appendFloats(to []byte, values []float32) []byte {
	to = append(to, '[')
	for i, x := range values {
		to = comma(to, i)
		if x != x {
			to = append(to, "null"...)
			continue
		}
		x = max(-math.MaxFloat32, min(math.MaxFloat32, x))
		to = strconv.AppendFloat(to, float64(x), 'g', -1, 32)
	}
	return append(to, ']')
}
