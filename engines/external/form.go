package external

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"os"

	"anneal/engines"
)

// A form is the multipart body of a transcription request: fields, and then the audio.
type form struct {
	head   bytes.Buffer
	writer *multipart.Writer
}

func newForm() *form {
	f := &form{}
	f.writer = multipart.NewWriter(&f.head)
	return f
}

func (f *form) add(name, value string) { _ = f.writer.WriteField(name, value) } // writing to a buffer never fails

// request returns a POST request with the form and the samples as a WAV file.
func (f *form) request(ctx context.Context, url string, pcm []byte) (*http.Request, error) {
	return f.newRequest(ctx, url, int64(len(pcm)), func() io.Reader { return bytes.NewReader(pcm) })
}

// fileRequest returns a POST request with the form and the samples in a file, which it does not
// load into memory.
func (f *form) fileRequest(ctx context.Context, url string, pcm *os.File) (*http.Request, error) {
	info, err := pcm.Stat()
	if err != nil {
		return nil, err
	}
	size := info.Size() &^ 1
	return f.newRequest(ctx, url, size, func() io.Reader { return io.NewSectionReader(pcm, 0, size) })
}

func (f *form) newRequest(
	ctx context.Context, url string, size int64, pcm func() io.Reader,
) (*http.Request, error) {
	part := textproto.MIMEHeader{}
	part.Set("Content-Disposition", `form-data; name="file"; filename="audio.wav"`)
	part.Set("Content-Type", "audio/wav")
	w, err := f.writer.CreatePart(part)
	if err == nil {
		_, err = w.Write(wavHeader(size))
	}
	if err != nil {
		return nil, err
	}
	before := bytes.Clone(f.head.Bytes())
	f.head.Reset()
	if err := f.writer.Close(); err != nil {
		return nil, err
	}
	after := bytes.Clone(f.head.Bytes())
	body := func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(before), pcm(), bytes.NewReader(after))), nil
	}
	first, _ := body() // body never returns an error
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, first)
	if err != nil {
		return nil, err
	}
	request.GetBody = body
	request.ContentLength = int64(len(before)) + size + int64(len(after))
	request.Header.Set("Content-Type", f.writer.FormDataContentType())
	return request, nil
}

// wavHeader returns the header of a WAV file with size bytes of samples.
func wavHeader(size int64) []byte {
	le := binary.LittleEndian
	clamp := func(n int64) uint32 { return uint32(min(n, 0xFFFFFFFF)) }
	h := le.AppendUint32([]byte("RIFF"), clamp(36+size))
	h = le.AppendUint32(append(h, "WAVEfmt "...), 16)
	h = le.AppendUint16(le.AppendUint16(h, 1), 1) // PCM, one channel
	h = le.AppendUint32(le.AppendUint32(h, engines.SampleRate), 2*engines.SampleRate)
	h = le.AppendUint16(le.AppendUint16(h, 2), 16)
	return le.AppendUint32(append(h, "data"...), clamp(size))
}
