// Package gguf writes models in GGUF, version 3, the file format of llama.cpp and other
// programs based on ggml: metadata, tokenizer and weights in one file. One tensor is in memory
// at a time.
package gguf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"
)

// Metadata value types of the format.
const (
	typeUint32 = 4
	typeInt32  = 5
	typeFloat  = 6
	typeBool   = 7
	typeString = 8
	typeArray  = 9
)

const (
	magic     = "GGUF"
	version   = 3
	alignment = 32 // of tensors, in bytes
)

// A value is a metadata entry: uint32, float32, bool, string, []string or []int32.
type value struct {
	key  string
	data any
}

// A tensor is a tensor to be written. read returns its values, row by row.
type tensor struct {
	name  string
	shape []int // outermost first
	as    Type
	read  func() ([]float32, error)
}

func (t *tensor) count() int {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// A writer keeps its position and its first error.
type writer struct {
	out *bufio.Writer
	at  int64
	err error
}

func (w *writer) bytes(data []byte) {
	if w.err == nil {
		var n int
		n, w.err = w.out.Write(data)
		w.at += int64(n)
	}
}

func (w *writer) uint32(v uint32) { w.bytes(binary.LittleEndian.AppendUint32(nil, v)) }
func (w *writer) uint64(v uint64) { w.bytes(binary.LittleEndian.AppendUint64(nil, v)) }

func (w *writer) string(s string) {
	w.uint64(uint64(len(s)))
	w.bytes([]byte(s))
}

// pad writes zeros up to the alignment.
func (w *writer) pad() {
	if rest := w.at % alignment; rest > 0 {
		w.bytes(make([]byte, alignment-rest))
	}
}

// write writes a complete file.
func write(out io.Writer, metadata []value, tensors []tensor) error {
	w := &writer{out: bufio.NewWriterSize(out, 1<<20)}
	w.bytes([]byte(magic))
	w.uint32(version)
	w.uint64(uint64(len(tensors)))
	w.uint64(uint64(len(metadata)))
	for _, v := range metadata {
		w.string(v.key)
		w.value(v.data)
	}
	offset := int64(0)
	for i := range tensors {
		t := &tensors[i]
		w.string(t.name)
		w.uint32(uint32(len(t.shape)))
		for axis := range t.shape {
			w.uint64(uint64(t.shape[len(t.shape)-1-axis])) // the format has the innermost dimension first
		}
		w.uint32(uint32(t.as))
		w.uint64(uint64(offset))
		offset += (t.as.bytes(t.count()) + alignment - 1) / alignment * alignment
	}
	w.pad()
	for i := range tensors {
		if w.err == nil {
			w.err = w.tensor(&tensors[i])
		}
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

func (w *writer) tensor(t *tensor) error {
	data, err := t.read()
	if err != nil {
		return err
	}
	const batch = 1 << 15 // values at once, a multiple of a block
	for len(data) > 0 {
		n := min(len(data), batch)
		w.bytes(t.as.encode(data[:n]))
		data = data[n:]
	}
	w.pad()
	return w.err
}

func (w *writer) value(data any) {
	switch v := data.(type) {
	case uint32:
		w.uint32(typeUint32)
		w.uint32(v)
	case float32:
		w.uint32(typeFloat)
		w.uint32(math.Float32bits(v))
	case bool:
		w.uint32(typeBool)
		w.bytes([]byte{map[bool]byte{true: 1}[v]})
	case string:
		w.uint32(typeString)
		w.string(v)
	case []string:
		w.uint32(typeArray)
		w.uint32(typeString)
		w.uint64(uint64(len(v)))
		for _, s := range v {
			w.string(s)
		}
	case []int32:
		w.uint32(typeArray)
		w.uint32(typeInt32)
		w.uint64(uint64(len(v)))
		for _, n := range v {
			w.uint32(uint32(n))
		}
	default:
		w.err = fmt.Errorf("gguf: no type of metadata for %T", data)
	}
}
