// Package gguf writes models in GGUF, version 3, the file format of llama.cpp and other
// programs based on ggml: metadata, tokenizer and weights in one file, or a LoRA adapter. One
// tensor is in memory at a time.
package gguf

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/quant"
)

// Types of metadata values in GGUF.
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
	alignment = 32 // tensors begin at multiples of this number of bytes
)

// A value is an entry of the metadata. data is a uint32, float32, bool, string, []string or
// []int32.
type value struct {
	key  string
	data any
}

// A tensor is a tensor to write. read returns its values, row by row.
type tensor struct {
	name  string
	shape []int // dimensions, the outermost first
	as    quant.Type
	read  func() ([]float32, error)
}

func (t *tensor) count() int {
	n := 1
	for _, d := range t.shape {
		n *= d
	}
	return n
}

// A writer counts the bytes that it writes, and keeps the first error.
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

// pad writes zeros up to the next multiple of alignment.
func (w *writer) pad() {
	if rest := w.at % alignment; rest > 0 {
		w.bytes(make([]byte, alignment-rest))
	}
}

// write writes a complete GGUF file.
func write(ctx context.Context, out io.Writer, metadata []value, tensors []tensor, o Options) error {
	w := &writer{out: bufio.NewWriterSize(out, 1<<20)}
	w.bytes([]byte(magic))
	w.uint32(version)
	w.uint64(uint64(len(tensors)))
	w.uint64(uint64(len(metadata)))
	for _, v := range metadata {
		w.string(v.key)
		w.value(v.data)
	}
	offset, total := int64(0), int64(0)
	for i := range tensors {
		t := &tensors[i]
		w.string(t.name)
		w.uint32(uint32(len(t.shape)))
		for axis := range t.shape {
			w.uint64(uint64(t.shape[len(t.shape)-1-axis])) // GGUF lists the innermost dimension first
		}
		w.uint32(uint32(t.as))
		w.uint64(uint64(offset))
		size := t.as.Bytes(t.count())
		offset, total = offset+(size+alignment-1)/alignment*alignment, total+size
	}
	w.pad()
	for i := range tensors {
		t := &tensors[i]
		if w.err == nil {
			w.err = w.tensor(ctx, t, o.workers())
		}
		if w.err == nil && o.Progress != nil {
			o.Progress(t.name, t.as.Bytes(t.count()), total)
		}
	}
	if w.err != nil {
		return w.err
	}
	return w.out.Flush()
}

// tensor encodes a tensor on several cores, and writes it.
func (w *writer) tensor(ctx context.Context, t *tensor, workers int) error {
	data, err := t.read()
	if err != nil {
		return err
	}
	if err := t.check(data); err != nil {
		return err
	}
	const batch = 1 << 15 // number of values that a core encodes at a time, a multiple of every block
	encoded := make([]byte, t.as.Bytes(len(data)))
	llama.Each((len(data)+batch-1)/batch, workers, func(i int) {
		if ctx.Err() == nil {
			t.as.Encode(encoded[t.as.Bytes(i*batch):], data[i*batch:min((i+1)*batch, len(data))])
		}
	})
	if err := ctx.Err(); err != nil {
		return err
	}
	w.bytes(encoded)
	w.pad()
	return w.err
}

// check returns an error if a value is outside of the range of the tensor's type.
func (t *tensor) check(data []float32) error {
	limit := t.as.Limit()
	for i, v := range data {
		if !(v <= limit && v >= -limit) && t.as != quant.F32 && t.as != quant.BF16 {
			return domain.Errorf(domain.FailedPrecondition,
				"value %d of %s is %g, and %s represents numbers up to %g: export the model as bf16 or f32",
				i, t.name, v, t.as, limit)
		}
	}
	return nil
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
		w.err = fmt.Errorf("gguf: metadata of type %T is not supported", data)
	}
}
