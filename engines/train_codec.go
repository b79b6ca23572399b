package engines

import (
	"encoding/binary"
	"encoding/json"
	"maps"
	"math"
	"slices"

	"anneal/domain"
)

// A trainCodec encodes or decodes values: each method appends a value to data, or reads it from the
// beginning of data, so that one function describes a type for both directions. Numbers are
// little-endian. A slice is preceded by its length plus one; 0 stands for nil.
type trainCodec struct {
	data     []byte
	decoding bool
	damaged  bool // the data end too early, or contain an invalid value
}

var errDamagedTrain = &domain.Error{Code: domain.DataLoss, Reason: "TRAIN_OPERATION_DAMAGED",
	Message: "the stored training operation or its result is damaged"}

func encodeTrain[T any](magic string, value *T, each func(*trainCodec, *T)) []byte {
	c := &trainCodec{data: []byte(magic)}
	each(c, value)
	return c.data
}

func decodeTrain[T any](magic string, data []byte, each func(*trainCodec, *T)) (value T, err error) {
	if len(data) < len(magic) || string(data[:len(magic)]) != magic {
		return value, errDamagedTrain
	}
	c := &trainCodec{data: data[len(magic):], decoding: true}
	each(c, &value)
	if c.damaged || len(c.data) > 0 {
		var none T
		return none, errDamagedTrain
	}
	return value, nil
}

// Minimum numbers of bytes of encoded elements of slices.
const (
	minText     = 8
	minDatum    = 5 * 8
	minOutput   = 2 * 8
	minSequence = 2*8 + 1
)

// take returns the next n bytes to decode; nil if there are fewer.
func (c *trainCodec) take(n int) []byte {
	if c.damaged || n > len(c.data) {
		c.damaged = true
		return nil
	}
	head := c.data[:n]
	c.data = c.data[n:]
	return head
}

func (c *trainCodec) uint64(v *uint64) {
	if !c.decoding {
		c.data = binary.LittleEndian.AppendUint64(c.data, *v)
	} else if b := c.take(8); b != nil {
		*v = binary.LittleEndian.Uint64(b)
	}
}

func (c *trainCodec) int64(v *int64) {
	u := uint64(*v)
	c.uint64(&u)
	*v = int64(u)
}

func (c *trainCodec) int(v *int) {
	i := int64(*v)
	c.int64(&i)
	*v = int(i)
}

func (c *trainCodec) float(v *float64) {
	u := math.Float64bits(*v)
	c.uint64(&u)
	*v = math.Float64frombits(u)
}

func (c *trainCodec) bool(v *bool) {
	if !c.decoding {
		b := byte(0)
		if *v {
			b = 1
		}
		c.data = append(c.data, b)
	} else if b := c.take(1); b != nil {
		c.damaged = c.damaged || b[0] > 1
		*v = b[0] == 1
	}
}

// length encodes n, or decodes the length of a slice whose elements have at least size bytes; -1
// stands for a nil slice.
func (c *trainCodec) length(n, size int) int {
	n++
	c.int(&n)
	if n--; c.decoding && (n < -1 || n > len(c.data)/size) {
		c.damaged = true
	}
	if c.damaged {
		return -1
	}
	return n
}

func (c *trainCodec) text(v *string) {
	n := c.length(len(*v), 1)
	if !c.decoding {
		c.data = append(c.data, *v...)
	} else {
		*v = string(c.take(max(n, 0)))
	}
}

func lengthOf[T any](v []T) int {
	if v == nil {
		return -1
	}
	return len(v)
}

func (c *trainCodec) int32s(v *[]int32) {
	n := c.length(lengthOf(*v), 4)
	if !c.decoding {
		c.data = slices.Grow(c.data, 4*len(*v))
		for _, x := range *v {
			c.data = binary.LittleEndian.AppendUint32(c.data, uint32(x))
		}
	} else if n >= 0 {
		*v = make([]int32, n)
		raw := c.take(4 * n)
		for i := range *v {
			(*v)[i] = int32(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
}

func (c *trainCodec) float32s(v *[]float32) {
	n := c.length(lengthOf(*v), 4)
	if !c.decoding {
		c.data = slices.Grow(c.data, 4*len(*v))
		for _, x := range *v {
			c.data = binary.LittleEndian.AppendUint32(c.data, math.Float32bits(x))
		}
	} else if n >= 0 {
		*v = make([]float32, n)
		raw := c.take(4 * n)
		for i := range *v {
			(*v)[i] = math.Float32frombits(binary.LittleEndian.Uint32(raw[4*i:]))
		}
	}
}

func (c *trainCodec) metrics(v *map[string]float64) {
	names := slices.Sorted(maps.Keys(*v))
	if *v == nil {
		names = nil
	}
	slice(c, &names, minText, (*trainCodec).text)
	if c.decoding && names != nil {
		*v = make(map[string]float64, len(names))
	}
	for _, name := range names {
		value := (*v)[name]
		c.float(&value)
		(*v)[name] = value
	}
}

func (c *trainCodec) files(v *domain.Files) {
	var text string
	if !c.decoding {
		data, err := json.Marshal(v)
		if err != nil {
			panic(err) // a domain.Files has only texts and integers
		}
		text = string(data)
	}
	c.text(&text)
	if c.decoding && !c.damaged {
		c.damaged = json.Unmarshal([]byte(text), v) != nil
	}
}

// slice encodes or decodes a slice whose encoded elements have at least size bytes.
func slice[T any](c *trainCodec, v *[]T, size int, each func(*trainCodec, *T)) {
	n := c.length(lengthOf(*v), size)
	if c.decoding && n >= 0 {
		*v = make([]T, n)
	}
	for i := range *v {
		if c.damaged {
			return
		}
		each(c, &(*v)[i])
	}
}

// optional encodes or decodes a pointer and what it points to.
func optional[T any](c *trainCodec, v **T, each func(*trainCodec, *T)) {
	set := *v != nil
	c.bool(&set)
	if !set || c.damaged {
		return
	}
	if c.decoding {
		*v = new(T)
	}
	each(c, *v)
}
