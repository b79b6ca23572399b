package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/audio"
	"anneal/api/wire"
)

// unreachable returns a harness whose server cannot download recordings.
func (st *fuzzHarness) unreachable(t *testing.T) *harness {
	return st.on(t).another(func(o *Options) {
		o.Dial = func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("there is no network") }
	})
}

// speechForm returns a form with a recording and a field.
func speechForm(name, value string) []byte {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	_ = w.SetBoundary("b")
	part, _ := w.CreateFormFile("file", "speech.wav")
	_, _ = io.WriteString(part, "go forward & left\n-->\n")
	_ = w.WriteField("model", "accounts/acme/deployments/d")
	if name != "" {
		_ = w.WriteField(name, value)
	}
	_ = w.Close()
	return out.Bytes()
}

// FuzzTranscriptionForm checks the responses to arbitrary bodies of a form.
func FuzzTranscriptionForm(f *testing.F) {
	const kind = "multipart/form-data; boundary=b"
	for _, one := range [][2]string{{"", ""}, {"response_format", "verbose_json"}, {"stream", "true"},
		{"url", "http://127.0.0.1/"}, {"timestamp_granularities[]", "word"}} {
		f.Add(kind, speechForm(one[0], one[1]))
	}
	f.Add(kind, []byte("--b\r\nContent-Disposition: form-data; "+
		"name=\"file\"\r\n\r\nhttp://example.com/\r\n--b\r\nContent-Disposition: form-data; "+
		"name=\"model\"\r\n\r\nacme/d\r\n--b--"))
	f.Add(kind, []byte("--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nx"))
	f.Add("multipart/form-data", []byte("--b--"))
	f.Add("multipart/mixed; boundary=b", []byte("--b--"))
	f.Add("text/plain; boundary=", []byte{0xff})
	st := newFuzzHarness(f, aSpeechDeployment)
	f.Fuzz(func(t *testing.T, contentType string, body []byte) {
		s := st.unreachable(t)
		r := s.as(http.MethodPost, "/v1/audio/transcriptions", "", "inference")
		r.Header.Set("Content-Type", contentType)
		s.survive(r, body)
		s.requireNoRecordings()
	})
}

// FuzzTranscriptionOptions checks the responses to requests with arbitrary values of two fields,
// which may be the same field. A successful response must have the requested format.
func FuzzTranscriptionOptions(f *testing.F) {
	names := wire.SortedKeys(audio.FormFields)
	values := map[string][]string{"temperature": {"0.0,0.2", "1e-1", "NaN"}, "timestamp_granularities": {"word,segment"},
		"min_speakers": {"3"}, "max_speakers": {"inf", "2"}, "language": {"zh-hans"},
		"response_format": audio.TranscriptFormats, "task": {"translate"}, "diarize": {"true"}, "stream": {"TRUE"},
		"url": {"https://example.com/a.mp3"}, "vad_model": {"silero"}, "prompt": {"\u0000"}}
	for i, name := range names {
		for _, value := range values[name] {
			f.Add(byte(i), value, byte(len(names)), "verbose_json")
			f.Add(byte(i), value, byte(i), value)
		}
	}
	st := newFuzzHarness(f, aSpeechDeployment)
	f.Fuzz(func(t *testing.T, one byte, first string, other byte, second string) {
		s := st.unreachable(t)
		var form bytes.Buffer
		w := multipart.NewWriter(&form)
		file, err := w.CreateFormFile("file", "speech.wav")
		require.NoError(t, err)
		_, _ = io.WriteString(file, "go forward")
		_ = w.WriteField("model", "accounts/acme/deployments/d")
		name := func(at byte) string { return append(names, "response_format")[int(at)%(len(names)+1)] }
		_ = w.WriteField(name(one), first)
		_ = w.WriteField(name(other), second)
		require.NoError(t, w.Close())
		r := s.as(http.MethodPost, "/v1/audio/transcriptions", "", "inference")
		r.Header.Set("Content-Type", w.FormDataContentType())
		if a := s.survive(r, form.Bytes()); a.status == http.StatusOK {
			require.Contains(t, strings.ReplaceAll(string(a.body), "\n", " "), "go forward")
		}
		s.requireNoRecordings()
	})
}
