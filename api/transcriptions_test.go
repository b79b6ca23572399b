package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/audio"
	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

const hearer = "accounts/acme/deployments/d1"

// speechHarness returns a harness with a deployment of a speech model and n ready replicas.
func speechHarness(t testing.TB, n int) *harness {
	s := newHarness(t, request.Limits{})
	s.deploySpeechReplicas(n)
	return s
}

// deploySpeechReplicas creates a deployment of a speech model with n ready replicas.
func (s *harness) deploySpeechReplicas(n int) {
	s.Helper()
	s.do(registerSpeech(ear))
	s.deploy("d1", n, func(spec *domain.DeploymentSpec) {
		spec.BaseModel, spec.SpeechFormat = string(ear), domain.SpeechSimulated
	})
}

// transcribe sends a recording that contains text, and fields that are each NAME=VALUE.
func (s *harness) transcribe(text string, fields ...string) response {
	s.Helper()
	return s.send(s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader(text),
		append([]string{"model=" + hearer}, fields...)...))
}

// rejectedWith requires that a transcription is rejected with a message that contains says.
func rejectedWith(t *testing.T, a response, status int, says ...string) {
	t.Helper()
	require.Equal(t, status, a.status, "%s", a.body)
	message := a.json(t)["error"].(map[string]any)["message"]
	for _, one := range says {
		require.Contains(t, message, one)
	}
}

// requireNoRecordings requires that no recording is stored.
func (s *harness) requireNoRecordings() {
	s.Helper()
	files, err := s.store.Files(s.Context(), blobs.TransientRoot)
	require.NoError(s, err)
	require.Empty(s, files.Sizes, "recordings are deleted after the response")
}

// A part is a part of a form. A part with a file name is a file.
type part struct{ name, file, content string }

// parts returns a transcription request whose form consists of the given parts. The form may be
// invalid.
func (s *harness) parts(all ...part) *http.Request {
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, p := range all {
		var to io.Writer
		var err error
		if p.file != "" {
			to, err = w.CreateFormFile(p.name, p.file)
		} else {
			to, err = w.CreateFormField(p.name)
		}
		require.NoError(s, err)
		_, err = io.WriteString(to, p.content)
		require.NoError(s, err)
	}
	require.NoError(s, w.Close())
	r := s.request(http.MethodPost, "/v1/audio/transcriptions", "inference", &form)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

func TestRecordingForms(t *testing.T) {
	s := newHarness(t, request.Limits{Audio: 1000})
	s.deploySpeechReplicas(1)
	speech, model := part{"file", "speech.wav", "go forward"}, part{"model", "", hearer}
	for name, c := range map[string]struct {
		parts   []part
		status  int
		message string
	}{
		"the file first": {[]part{speech, model}, 200, "go forward"},
		"the file last":  {[]part{model, speech}, 200, "go forward"},
		"camelCase":      {[]part{model, speech, {"responseFormat", "", "text"}}, 200, "go forward"},
		"empty fields":   {[]part{model, speech, {"language", "", ""}, {"temperature", "", ""}}, 200, "go forward"},
		"no file":        {[]part{model}, 400, "file: is required"},
		"two files":      {[]part{speech, model, speech}, 400, "file: the request has 2 recordings"},
		"an empty file":  {[]part{{"file", "speech.wav", ""}, model}, 400, "file: is an empty file"},
		"a name for a file": {[]part{{"file", "", "speech.wav"}, model}, 400,
			"file: must be an http or https URL"},
		"a password": {[]part{{"url", "", "http://a:b@example.com/"}, model}, 400,
			"url: must be an http or https URL"},
		"a large file": {[]part{{"file", "speech.wav", strings.Repeat("a", 1001)}, model}, 413,
			"exceeds the limit of 1000 bytes: split the recording"},
		"a large field": {[]part{speech, model, {"prompt", "", strings.Repeat("a", audio.MaxFieldSize+1)}}, 400,
			"prompt: must have at most"},
		"a large unknown one": {[]part{speech, model, {"x", "", strings.Repeat("a", 100_000)}}, 200, "go forward"},
		"a large second file": {[]part{model, {"file", "a.wav", "a"},
			{"file", "b.wav", strings.Repeat("a", 1000+audio.FormOverhead)}},
			413, "exceeds the limit of 1000 bytes: split the recording"},
		"a huge unknown one": {[]part{speech, model, {"x", "", strings.Repeat("a", 1000+audio.FormOverhead)}}, 413,
			"exceeds the limit of 1000 bytes: split the recording"},
		"a long name": {[]part{speech, model, {strings.Repeat("n", 100_000), "", "a"}}, 400,
			"name of more than 256 bytes"},
		"a long prompt": {[]part{speech, model, {"prompt", "", strings.Repeat("a", audio.MaxSpeechPrompt+1)}}, 400,
			"prompt: must have at most 8192 bytes"},
		"no UTF-8":    {[]part{speech, model, {"prompt", "", "\xff"}}, 400, "prompt: must be text in UTF-8"},
		"many fields": {append(make([]part, audio.MaxFormFields), speech), 400, "more than 128 fields"},
		"a late fault": {[]part{{"diarize", "", "1"}, {"temperature", "", "2"}, speech, model, {"stream", "", "x"}}, 400,
			"temperature: must be a number"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.parts(c.parts...)
			r.ContentLength = -1 // unknown length
			a := s.send(r)
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), c.message)
			s.requireNoRecordings()
		})
	}
	for _, kind := range []string{"", "application/json", "multipart/form-data", "multipart/mixed; boundary=b",
		"audio/wav"} {
		r := s.request(http.MethodPost, "/v1/audio/transcriptions", "inference", strings.NewReader("--b--"))
		r.Header.Set("Content-Type", kind)
		rejectedWith(t, s.send(r), 400, "multipart/form-data")
	}
	r := s.parts(speech, model)
	whole := testutil.ReadAll(t, r.Body)
	for cut := range len(whole) - len("--\r\n") {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(whole[:cut])), int64(cut)
		a := s.send(r.Clone(t.Context()))
		require.Equal(t, 400, a.status, "cut at %d: %s", cut, a.body)
	}
	s.requireNoRecordings()
}

func TestGranularities(t *testing.T) {
	s := speechHarness(t, 1)
	const name = "timestamp_granularities"
	for _, c := range []struct {
		fields          []string
		words, segments bool
	}{
		{nil, false, true},
		{[]string{name + "=segment"}, false, true},
		{[]string{name + "=word"}, true, false},
		{[]string{name + "=word,segment"}, true, true},
		{[]string{name + "=segment, word"}, true, true},
		{[]string{name + "=word", name + "=segment"}, true, true},
		{[]string{name + "[]=word", name + "[]=segment"}, true, true},
		{[]string{name + "[]=word,segment", name + "=word"}, true, true},
		{[]string{"timestampGranularities=word"}, true, false},
	} {
		a := s.transcribe("go forward", append(c.fields, "response_format=verbose_json")...)
		require.Equal(t, 200, a.status, "%s: %s", c.fields, a.body)
		_, words := a.json(t)["words"]
		_, segments := a.json(t)["segments"]
		require.Equal(t, c.words, words, "%s", c.fields)
		require.Equal(t, c.segments, segments, "%s", c.fields)
		if segments {
			_, inside := a.json(t)["segments"].([]any)[0].(map[string]any)["words"]
			require.Equal(t, c.words, inside)
		}
	}
	for _, wrong := range []string{"", "words", "word,", "word;segment"} {
		if a := s.transcribe("go", name+"="+wrong, "response_format=verbose_json"); wrong != "" {
			rejectedWith(t, a, 400, name+": must be word, segment")
		}
	}
}

func TestTemperatures(t *testing.T) {
	s := speechHarness(t, 1)
	for text, want := range map[string][]float64{"": nil, "0": {0}, "0.37": {0.37}, "1.0": {1},
		"0.0,0.2,0.4,0.6,0.8,1.0": {0, 0.2, 0.4, 0.6, 0.8, 1}, "0.2, 0.8": {0.2, 0.8}} {
		a := s.transcribe("go", "temperature="+text)
		require.Equal(t, 200, a.status, "%s: %s", text, a.body)
		require.Equal(t, want, s.replicas.transcriptions[len(s.replicas.transcriptions)-1].Options.Temperature)
	}
	for _, wrong := range []string{"-0.2", "1.2", "NaN", "inf", "warm", "0.2,", "0.1,0.3", "0.4,0.2", "0.2,0.2",
		"0x1p-2,1", ","} {
		rejectedWith(t, s.transcribe("go", "temperature="+wrong), 400, "temperature: must be a number from 0 to 1")
	}
}

// TestTranscriptionOptions checks that every option of a form reaches the engine.
func TestTranscriptionOptions(t *testing.T) {
	s := speechHarness(t, 1)
	a := s.transcribe("go forward", "response_format=verbose_json", "timestamp_granularities=word", "language=DE",
		"prompt=Um, I", "temperature=0.2", "task=translate", "vad_model=silero",
		"alignment_model=mms_fa", "preprocessing=bass_dynamic", "diarize=true", "min_speakers=2", "max_speakers=inf")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "translate", a.json(t)["task"])
	got := s.replicas.transcriptions[0]
	require.EqualValues(t, len("go forward"), got.Audio.Size)
	got.Audio = engines.AudioFile{}
	require.Equal(t, engines.TranscriptionRequest{Preprocessing: engines.PreprocessBassDynamic,
		Options: engines.TranscriptionOptions{Language: "de", Prompt: "Um, I", Temperature: []float64{0.2},
			Translate: true, VAD: "silero", Alignment: "mms_fa", Words: true, Diarize: true, MinSpeakers: 2}}, got)
	require.Equal(t, "10.5", s.transcribed(t, strings.Repeat("la ", 21)).header.Get("anneal-audio-seconds"))
}

func (s *harness) transcribed(t *testing.T, text string) response {
	t.Helper()
	a := s.transcribe(text)
	require.Equal(t, 200, a.status, "%s", a.body)
	return a
}

// TestUnsupportedOptions checks that a request with options that the model does not support is
// rejected with the field names of the form, and is not sent to another replica.
func TestUnsupportedOptions(t *testing.T) {
	s := speechHarness(t, 3)
	s.replicas.transcribe = func(context.Context, domain.Replica, engines.TranscriptionRequest,
		func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		var v domain.Violations
		v.Add("language", "must be en: the model knows no other")
		v.Add("task", "must be transcribe: the model does not translate")
		return engines.Transcript{}, v.Err()
	}
	a := s.transcribe("geh vor", "language=de", "task=translate", "stream=true")
	rejectedWith(t, a, 400, "language: must be en", "task: must be transcribe")
	require.Equal(t, "language", a.json(t)["error"].(map[string]any)["param"])
	require.Len(t, s.replicas.requestIDs(), 1)
	s.requireNoRecordings()
}

// failing returns a function that transcribes n lines for the first request and then fails, and
// that transcribes the whole recording for later requests.
func failing(n int) func(context.Context, domain.Replica, engines.TranscriptionRequest,
	func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	var asked atomic.Int32
	return func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		if asked.Add(1) > 1 {
			return transcribeText(ctx, req, emit)
		}
		died := domain.Errorf(domain.Unavailable, "the node is gone")
		lines := 0
		_, err := transcribeText(ctx, req, func(step engines.TranscriptEvent) error {
			if lines++; lines > n {
				return died
			}
			return emit(step)
		})
		if errors.Is(err, died) {
			err = died
		}
		return engines.Transcript{}, err
	}
}

// TestTranscriptionWorkerFails checks that another worker transcribes the whole recording when a
// worker fails during a transcription, and that no text is sent twice.
func TestTranscriptionWorkerFails(t *testing.T) {
	const text = "one two\nthree four\nfive six\n"
	for n := range 3 {
		for _, streamed := range []string{"false", "true"} {
			s := speechHarness(t, 2)
			s.replicas.transcribe = failing(n)
			a := s.transcribe(text, "stream="+streamed, "response_format=verbose_json", "timestamp_granularities=word,segment")
			require.Equal(t, 200, a.status, "%s", a.body)
			require.Len(t, s.replicas.requestIDs(), 2)
			whole := map[string]any{}
			if streamed == "true" {
				message := ""
				for _, event := range chunks(t, string(a.body)) {
					if delta, ok := event["delta"].(string); ok {
						message += delta
					}
					if event["type"] == audio.EventDone {
						whole = event["transcript"].(map[string]any)
					}
				}
				require.Equal(t, "one two three four five six", message, "after %d lines", n)
			} else {
				whole = a.json(t)
			}
			require.Equal(t, "one two three four five six", whole["text"])
			require.Len(t, whole["words"], 6)
			require.Len(t, whole["segments"], 3)
			s.requireNoRecordings()
		}
	}
}

// TestDeltasAddUpToText checks that the deltas of a stream concatenated are the final text of the
// stream, also for a recording without words.
func TestDeltasAddUpToText(t *testing.T) {
	s := speechHarness(t, 1)
	for _, text := range []string{"one two\nthree\n", "\n"} {
		for _, format := range audio.TranscriptFormats {
			a := s.transcribe(text, "stream=true", "response_format="+format)
			require.Equal(t, 200, a.status, "%s", a.body)
			message := ""
			for _, event := range chunks(t, string(a.body)) {
				if delta, ok := event["delta"].(string); ok {
					message += delta
				}
				if event["type"] == audio.EventDone {
					require.Equal(t, event["text"], message, "%s of %q", format, text)
				}
			}
		}
	}
}

func TestNoReplicaIsLeft(t *testing.T) {
	s := speechHarness(t, 2)
	s.replicas.transcribe = func(_ context.Context, _ domain.Replica, _ engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		err := emit(engines.TranscriptEvent{Seconds: 1, Segment: &engines.Segment{Text: "one", End: 1}})
		return engines.Transcript{}, errors.Join(err, domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	rejectedWith(t, s.transcribe("one"), 503, "the node is gone")
	a := s.transcribe("one", "stream=true")
	require.Equal(t, 200, a.status, "the response has begun")
	require.Equal(t, 1, strings.Count(string(a.body), audio.EventDelta), "%s", a.body)
	require.Contains(t, string(a.body), `data: {"error":`)
	require.NotContains(t, string(a.body), "[DONE]")
	s.requireNoRecordings()
}

// TestDisconnectStopsTranscription checks that the transcription stops, and the recording is
// deleted, when the client closes the connection.
func TestDisconnectStopsTranscription(t *testing.T) {
	for _, streamed := range []string{"true", "false"} {
		s := speechHarness(t, 2)
		began, ended := make(chan struct{}), make(chan error, 1)
		s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, _ engines.TranscriptionRequest,
			emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
			err := emit(engines.TranscriptEvent{Seconds: 1, Segment: &engines.Segment{Text: "one", End: 1}})
			close(began)
			<-ctx.Done()
			ended <- errors.Join(err, ctx.Err())
			return engines.Transcript{}, ctx.Err()
		}
		ctx, hangUp := context.WithCancel(t.Context())
		r := s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader("one"), "model="+hearer,
			"stream="+streamed).WithContext(ctx)
		over := make(chan struct{})
		go func() {
			defer close(over)
			if a, err := http.DefaultClient.Do(r); err == nil {
				_, _ = io.Copy(io.Discard, a.Body)
				_ = a.Body.Close()
			}
		}()
		<-began
		hangUp()
		require.ErrorIs(t, <-ended, context.Canceled)
		<-over
		require.Eventually(t, func() bool {
			files, err := s.store.Files(t.Context(), blobs.TransientRoot)
			return err == nil && len(files.Sizes) == 0
		}, patience, time.Millisecond)
		require.Len(t, s.replicas.requestIDs(), 1, "no other replica gets it")
	}
}

func TestTranscriptionTimeLimit(t *testing.T) {
	s := newHarness(t, request.Limits{Transcription: 20 * time.Millisecond})
	s.deploySpeechReplicas(2)
	s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, _ engines.TranscriptionRequest,
		_ func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		<-ctx.Done()
		return engines.Transcript{}, ctx.Err()
	}
	rejectedWith(t, s.transcribe("one"), 504,
		"did not end within its time limit of 20ms; it reached second 0 of the recording: split the recording, for example")
	require.Contains(t, s.logged.String(), "level=WARN")
	require.NotContains(t, s.logged.String(), "level=ERROR", "the operator has set this limit")
	s.requireNoRecordings()
}

func TestConcurrentTranscriptionLimit(t *testing.T) {
	s := newHarness(t, request.Limits{Transcriptions: 1})
	s.deploySpeechReplicas(1)
	began, end := make(chan struct{}), make(chan struct{})
	s.replicas.transcribe = func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		close(began)
		<-end
		return transcribeText(ctx, req, emit)
	}
	first := make(chan response)
	go func() { first <- s.transcribe("one") }()
	<-began
	rejectedWith(t, s.transcribe("two"), 429, "accounts/acme has 1 transcriptions in progress")
	close(end)
	require.Equal(t, 200, (<-first).status)
}

func TestTranscriptionPermissions(t *testing.T) {
	s := speechHarness(t, 1)
	request := func(path, authorization string) response {
		r := s.form(path, "", "file", "speech.wav", strings.NewReader("one"), "model="+hearer)
		r.Header.Set("Authorization", authorization)
		return s.send(r)
	}
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations",
		"/inference/v1/audio/transcriptions", "/inference/v1/audio/translations"} {
		for _, role := range []string{"admin", "user", "inference", "operator"} {
			for _, scheme := range []string{"", "Bearer ", "bearer "} {
				require.Equal(t, 200, request(path, scheme+s.keys[role]).status, "%q %s", scheme, role)
			}
		}
		rejectedWith(t, request(path, "Basic "+s.keys["user"]), 401)
		rejectedWith(t, request(path, s.keys["other"]), 403)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/acme", domain.SuspendAccount{SuspendState: "FAILED_PAYMENTS"}))
	rejectedWith(t, s.transcribe("one"), 412, "suspended")
}

// TestRepeatedTranscriptions checks that a retry with the same Idempotency-Key gets the stored
// response in any format, and that a stream with an Idempotency-Key is rejected.
func TestRepeatedTranscriptions(t *testing.T) {
	s := speechHarness(t, 1)
	do := func(key string, fields ...string) response {
		r := s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader("one"),
			append(fields, "model="+hearer)...)
		r.Header.Set(request.IdempotencyHeader, key)
		return s.send(r)
	}
	for i, format := range audio.TranscriptFormats {
		first, second := do(fmt.Sprint(i), "response_format="+format), do(fmt.Sprint(i), "response_format="+format)
		require.Equal(t, 200, first.status, "%s", first.body)
		require.Equal(t, string(first.body), string(second.body))
		require.Equal(t, first.header.Get("Content-Type"), second.header.Get("Content-Type"))
		require.Equal(t, "true", second.header.Get(request.ReplayedHeader))
	}
	require.Len(t, s.replicas.requestIDs(), len(audio.TranscriptFormats))
	rejectedWith(t, do("streamed", "stream=true"), 400, "stream: cannot be combined with Idempotency-Key")
}

func TestStrictRejectsUnknownFields(t *testing.T) {
	s := speechHarness(t, 1)
	s.server.audio.Strict = true
	rejectedWith(t, s.transcribe("one", "colour=red", "temperature=9"), 400, "colour: is not a field of this form",
		"temperature: must")
}
