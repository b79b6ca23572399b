package safetensors

import "bytes"

// Parse parses a file in memory; name is used in errors.
func Parse(name string, data []byte) (*File, error) {
	file, err := read(name, bytes.NewReader(data), int64(len(data)))
	if err == nil {
		file.close = func() error { return nil }
	}
	return file, err
}
