package sound

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/internal/testutil"
)

// chunk returns a chunk of a RIFF file, padded to an even length.
func chunk(id string, content []byte) []byte {
	c := binary.LittleEndian.AppendUint32([]byte(id), uint32(len(content)))
	c = append(c, content...)
	return append(c, make([]byte, len(content)%2)...)
}

func riff(chunks ...[]byte) []byte {
	body := append([]byte("WAVE"), bytes.Join(chunks, nil)...)
	return chunk("RIFF", body)
}

func format(tag, channels, bits uint16, rate uint32, more ...byte) []byte {
	f := binary.LittleEndian.AppendUint16(nil, tag)
	f = binary.LittleEndian.AppendUint16(f, channels)
	f = binary.LittleEndian.AppendUint32(f, rate)
	f = binary.LittleEndian.AppendUint32(f, rate*uint32(channels*bits/8))
	f = binary.LittleEndian.AppendUint16(f, channels*bits/8)
	f = binary.LittleEndian.AppendUint16(f, bits)
	return chunk("fmt ", append(f, more...))
}

var mono16 = format(formatPCM, 1, 16, engines.SampleRate)

func plainWAV(pcm []byte) []byte { return riff(mono16, chunk("data", pcm)) }

// sized returns a file in which the size of the first chunk with an ID is replaced.
func sized(content []byte, id string, size uint32) []byte {
	c := bytes.Clone(content)
	binary.LittleEndian.PutUint32(c[bytes.Index(c, []byte(id))+4:], size)
	return c
}

func TestWAV(t *testing.T) {
	pcm := tones(0.1)
	data, list := chunk("data", pcm), chunk("LIST", []byte("INFOodd"))
	extensible := func(bits byte, guid []byte) []byte {
		return format(formatExtensible, 1, 16, engines.SampleRate, append([]byte{22, 0, bits, 0, 4, 0, 0, 0}, guid...)...)
	}
	simple := plainWAV(pcm)
	for name, c := range map[string]struct {
		content []byte
		want    []byte // nil if the file needs a decoder
	}{
		"plain":                          {simple, pcm},
		"odd chunks around":              {riff(list, mono16, list, data, list), pcm},
		"longer format":                  {riff(format(formatPCM, 1, 16, engines.SampleRate, 0, 0), data), pcm},
		"extensible":                     {riff(extensible(16, pcmGUID), data), pcm},
		"extensible, 0 valid bits":       {riff(extensible(0, pcmGUID), data), pcm},
		"extensible, 12 bits":            {riff(extensible(12, pcmGUID), data), nil},
		"extensible, float":              {riff(extensible(16, append([]byte{3}, pcmGUID[1:]...)), data), nil},
		"extensible, truncated":          {riff(extensible(16, pcmGUID[:4]), data), nil},
		"stream of size 0":               {sized(sized(simple, "data", 0), "RIFF", 0), pcm},
		"stream of size 0 with a header": {sized(sized(simple, "data", 0), "RIFF", 36), pcm},
		"stream of maximum size":         {sized(sized(simple, "data", unknownSize), "RIFF", unknownSize), pcm},
		"empty, then another chunk":      {riff(mono16, chunk("data", nil), list), []byte{}},
		"empty":                          {plainWAV(nil), []byte{}},
		"shorter than its size":          {simple[:len(simple)-100], pcm[:len(pcm)-100]},
		"longer than its size":           {append(bytes.Clone(simple), "tail"...), pcm},
		"stereo":                         {riff(format(formatPCM, 2, 16, engines.SampleRate), data), nil},
		"8 bits":                         {riff(format(formatPCM, 1, 8, engines.SampleRate), data), nil},
		"44100 Hz":                       {riff(format(formatPCM, 1, 16, 44100), data), nil},
		"float":                          {riff(format(3, 1, 16, engines.SampleRate), data), nil},
		"two formats":                    {riff(mono16, mono16, data), nil},
		"no format":                      {riff(data), nil},
		"no data":                        {riff(mono16, list), nil},
		"a format that is too long":      {riff(chunk("fmt ", make([]byte, maxFormat+2)), data), nil},
		"a format that is too short":     {riff(chunk("fmt ", make([]byte, 14)), data), nil},
		"an endless chunk":               {sized(riff(mono16, list, data), "LIST", unknownSize), nil},
		"RIFX":                           {append([]byte("RIFX"), simple[4:]...), nil},
		"no WAVE":                        {append(append(bytes.Clone(simple[:8]), "AVI "...), simple[12:]...), nil},
		"truncated header":               {simple[:20], nil},
		"empty file":                     {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := wav(bytes.NewReader(c.content))
			if c.want == nil {
				require.ErrorIs(t, err, errNotPlain)
				return
			}
			require.NoError(t, err)
			got := testutil.ReadAll(t, r)
			require.Equal(t, c.want, got)
		})
	}
}

// FuzzWAV checks that reading any file ends and returns only samples of the file.
func FuzzWAV(f *testing.F) {
	pcm := tones(0.01)
	simple := plainWAV(pcm)
	for _, seed := range [][]byte{
		simple, riff(chunk("LIST", []byte("odd")), mono16, chunk("data", pcm)), sized(simple, "data", 0), sized(simple,
			"data", unknownSize),
		sized(simple, "fmt ", unknownSize), sized(simple, "RIFF", 0), simple[:30],
		riff(format(formatExtensible, 1, 16, engines.SampleRate, append([]byte{22, 0, 16, 0, 4, 0, 0, 0}, pcmGUID...)...),
			chunk("data", pcm)),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		r, err := wav(bytes.NewReader(content))
		if err != nil {
			require.ErrorIs(t, err, errNotPlain)
			return
		}
		got := testutil.ReadAll(t, r)
		require.True(t, len(got) == 0 || bytes.Contains(content, got))
		var seconds float64
		for splitter := NewSplitter(bytes.NewReader(got), 0); ; {
			s, err := splitter.Next()
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			require.InDelta(t, seconds, s.Start, 1e-6)
			seconds += s.Seconds()
		}
		require.InDelta(t, float64(len(got)/2)/engines.SampleRate, seconds, 1e-6)
	})
}
