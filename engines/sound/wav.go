package sound

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"anneal/engines"
)

// errNotPlain is the error for a file that needs ffmpeg, because it is not a WAV file in the sample
// format of engines.SpeechModel.
var errNotPlain = errors.New("not a WAV file of 16 kHz, mono, 16 bits")

const (
	formatPCM        = 1
	formatExtensible = 0xFFFE
	maxFormat        = 1 << 10 // maximum size of a fmt chunk, in bytes
	maxHeader        = 1 << 20 // maximum number of bytes before the samples
	unknownSize      = 0xFFFFFFFF
)

// pcmGUID is the subformat of PCM in WAVE_FORMAT_EXTENSIBLE (KSDATAFORMAT_SUBTYPE_PCM).
var pcmGUID = []byte("\x01\x00\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71")

// wav reads the header of a WAV file, and returns a reader of its samples. It returns errNotPlain
// for a file that needs ffmpeg.
func wav(r io.Reader) (io.Reader, error) {
	var riff struct {
		ID   [4]byte
		Size uint32
		Form [4]byte
	}
	if err := parse(r, &riff); err != nil {
		return nil, err
	}
	if string(riff.ID[:]) != "RIFF" || string(riff.Form[:]) != "WAVE" {
		return nil, errNotPlain
	}
	known := false
	for at := int64(12); at < maxHeader; {
		var chunk struct {
			ID   [4]byte
			Size uint32
		}
		if err := parse(r, &chunk); err != nil {
			return nil, err
		}
		at += 8
		size := int64(chunk.Size)
		if string(chunk.ID[:]) == "data" {
			if !known {
				return nil, errNotPlain
			}
			return samples(r, chunk.Size, int64(riff.Size)+8 > at), nil
		}
		padded := size + size&1
		if string(chunk.ID[:]) == "fmt " {
			if known || size > maxFormat {
				return nil, errNotPlain
			}
			format := make([]byte, padded)
			if err := parse(r, format); err != nil {
				return nil, err
			}
			if !supported(format[:size]) {
				return nil, errNotPlain
			}
			known = true
		} else if _, err := io.CopyN(io.Discard, r, min(padded, maxHeader)); err != nil {
			return nil, notPlain(err)
		}
		at += padded
	}
	return nil, errNotPlain
}

// samples returns a reader of a data chunk of the given size. A program that streams does not know
// the size, and writes 0 or the maximum: the chunk then ends with the file. If more is true, other
// chunks follow, and the size 0 means an empty chunk.
func samples(r io.Reader, size uint32, more bool) io.Reader {
	if size == unknownSize || size == 0 && !more {
		return r
	}
	return io.LimitReader(r, int64(size))
}

// supported reports whether a fmt chunk describes the sample format of engines.SpeechModel.
func supported(format []byte) bool {
	if len(format) < 16 {
		return false
	}
	u16 := func(at int) uint16 { return binary.LittleEndian.Uint16(format[at:]) }
	tag := u16(0)
	if tag == formatExtensible {
		if len(format) < 40 || u16(18) != 0 && u16(18) != 16 || !bytes.Equal(format[24:40], pcmGUID) {
			return false
		}
		tag = formatPCM
	}
	rate := binary.LittleEndian.Uint32(format[4:])
	return tag == formatPCM && u16(2) == 1 && rate == engines.SampleRate &&
		u16(12) == sampleBytes && u16(14) == 8*sampleBytes
}

func parse(r io.Reader, into any) error {
	return notPlain(binary.Read(r, binary.LittleEndian, into))
}

// notPlain returns errNotPlain for the end of a file, because a file with a truncated header is no
// WAV file. It returns any other error unchanged.
func notPlain(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return errNotPlain
	}
	return err
}
