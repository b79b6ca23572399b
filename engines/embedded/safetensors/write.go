package safetensors

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"anneal/disk"
)

// A Tensor is a tensor to write. Data has its values row by row; Write stores them as DType.
type Tensor struct {
	Info
	Data []float32
}

// Write writes the tensors in their order, so that equal arguments give equal bytes. It adds the
// metadata {"format": "pt"}, without which some readers reject a file.
func Write(w io.Writer, tensors []Tensor, metadata map[string]string) error {
	header, err := headerOf(tensors, metadata)
	if err != nil {
		return err
	}
	if _, err := w.Write(header); err != nil {
		return err
	}
	chunk := make([]byte, 0, 1<<18)
	for _, t := range tensors {
		for data := t.Data; len(data) > 0; {
			n := min(len(data), cap(chunk)/4)
			if _, err := w.Write(encode(chunk[:0], data[:n], t.DType)); err != nil {
				return err
			}
			data = data[n:]
		}
	}
	return nil
}

// WriteFile writes a file as Write does. It replaces an existing file at path, completely or not at
// all.
func WriteFile(path string, tensors []Tensor, metadata map[string]string) (err error) {
	part := path + ".part"
	f, err := disk.Create(part)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part))
		}
	}()
	buffer := bufio.NewWriterSize(f, 1<<20)
	if err := errors.Join(Write(buffer, tensors, metadata), buffer.Flush(), f.Close()); err != nil {
		return err
	}
	return os.Rename(part, path)
}

// headerOf returns the length of the header and the header, which ends with spaces so that the
// values begin at a multiple of eight bytes.
func headerOf(tensors []Tensor, metadata map[string]string) ([]byte, error) {
	all := map[string]string{"format": "pt"}
	for key, value := range metadata {
		all[key] = value
	}
	meta, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}
	var header bytes.Buffer
	fmt.Fprintf(&header, `{"__metadata__":%s`, meta)
	at, seen := 0, map[string]bool{"__metadata__": true}
	for _, t := range tensors {
		if t.DType.Size() == 0 || t.DType.Eight() {
			return nil, fmt.Errorf("tensor %s: cannot write type %q, only F32, BF16 and F16", t.Name, t.DType)
		}
		if seen[t.Name] || t.Name == "" {
			return nil, fmt.Errorf("tensor name %q is empty, used twice or the reserved name __metadata__", t.Name)
		}
		if t.Count() != len(t.Data) {
			return nil, fmt.Errorf("tensor %s: shape %v needs %d values, got %d", t.Name, t.Shape, t.Count(), len(t.Data))
		}
		seen[t.Name] = true
		name, err := json.Marshal(t.Name)
		if err != nil {
			return nil, err
		}
		shape, err := json.Marshal(append([]int{}, t.Shape...))
		if err != nil {
			return nil, err
		}
		end := at + t.DType.Size()*len(t.Data)
		fmt.Fprintf(&header, `,%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, name, t.DType, shape, at, end)
		at = end
	}
	header.WriteByte('}')
	for header.Len()%8 != 0 {
		header.WriteByte(' ')
	}
	return append(binary.LittleEndian.AppendUint64(nil, uint64(header.Len())), header.Bytes()...), nil
}
