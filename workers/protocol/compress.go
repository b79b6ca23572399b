package protocol

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
)

// maxPlain is the maximum length of a compressed message before its compression, in bytes.
const maxPlain = 16 << 20

// compressedHead is the beginning of a compressed message.
var compressedHead = []byte{0x1f, 0x8b}

// compresses reports whether messages of the type of message may be compressed.
func compresses(message any) bool {
	switch message.(type) {
	case Heartbeat, *Heartbeat, Assignments, *Assignments:
		return true
	}
	return false
}

func compress(data []byte) []byte {
	var out bytes.Buffer
	w := gzip.NewWriter(&out)
	_, _ = w.Write(data) // writing to a buffer never fails
	_ = w.Close()
	return out.Bytes()
}

func decompress(data []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	plain, err := io.ReadAll(io.LimitReader(r, maxPlain+1))
	if err == nil && len(plain) > maxPlain {
		err = fmt.Errorf("it has more than %d bytes", maxPlain)
	}
	return plain, err
}
