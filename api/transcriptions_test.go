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

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
)

const hearer = "accounts/acme/deployments/d1"

// hearers makes a deployment of a speech model with so many ready replicas.
func (s *stage) hearers(n int) {
	s.Helper()
	s.do(registerSpeech(ear))
	s.deploy("d1", n, func(spec *domain.DeploymentSpec) {
		spec.BaseModel, spec.SpeechFormat = string(ear), domain.SpeechSimulated
	})
}

// transcribe sends a recording that is a text, and fields that are each NAME=VALUE.
func (s *stage) transcribe(text string, fields ...string) answer {
	s.Helper()
	return s.send(s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader(text), append([]string{"model=" + hearer}, fields...)...))
}

// refusedWith requires a refusal of a transcription, and what it says.
func refusedWith(t *testing.T, a answer, status int, says ...string) {
	t.Helper()
	require.Equal(t, status, a.status, "%s", a.body)
	message := a.json(t)["error"].(map[string]any)["message"]
	for _, one := range says {
		require.Contains(t, message, one)
	}
}

// nothingStays requires that no recording is kept.
func (s *stage) nothingStays() {
	s.Helper()
	files, err := s.store.Files(s.Context(), blobs.TransientRoot)
	require.NoError(s, err)
	require.Empty(s, files.Sizes, "recordings are removed when they are answered")
}

// A part of a form; one with a file name is a file.
type part struct{ name, file, content string }

// parts makes a request of a form that may be wrong.
func (s *stage) parts(all ...part) *http.Request {
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

func TestFormsWithARecording(t *testing.T) {
	s := newStage(t, Limits{Audio: 1000})
	s.hearers(1)
	speech, model := part{"file", "speech.wav", "go forward"}, part{"model", "", hearer}
	for name, c := range map[string]struct {
		parts  []part
		status int
		says   string
	}{
		"the file first":      {[]part{speech, model}, 200, "go forward"},
		"the file last":       {[]part{model, speech}, 200, "go forward"},
		"camelCase":           {[]part{model, speech, {"responseFormat", "", "text"}}, 200, "go forward"},
		"empty fields":        {[]part{model, speech, {"language", "", ""}, {"temperature", "", ""}}, 200, "go forward"},
		"no file":             {[]part{model}, 400, "file: is required"},
		"two files":           {[]part{speech, model, speech}, 400, "file: is given 2 times"},
		"an empty file":       {[]part{{"file", "speech.wav", ""}, model}, 400, "file: is empty"},
		"a name for a file":   {[]part{{"file", "", "speech.wav"}, model}, 400, "file: must be a file, or a URL"},
		"a password":          {[]part{{"url", "", "http://a:b@example.com/"}, model}, 400, "url: must be a file, or a URL"},
		"a large file":        {[]part{{"file", "speech.wav", strings.Repeat("a", 1001)}, model}, 413, "larger than the 1000 bytes that a recording may have: cut it into parts"},
		"a large field":       {[]part{speech, model, {"prompt", "", strings.Repeat("a", maxFieldSize+1)}}, 400, "prompt: must have at most"},
		"a large unknown one": {[]part{speech, model, {"x", "", strings.Repeat("a", 100_000)}}, 200, "go forward"},
		"a large second file": {[]part{model, {"file", "a.wav", "a"}, {"file", "b.wav", strings.Repeat("a", 1000+formRoom)}}, 413, "larger than the 1000 bytes that a recording may have: cut it into parts"},
		"a huge unknown one":  {[]part{speech, model, {"x", "", strings.Repeat("a", 1000+formRoom)}}, 413, "larger than the 1000 bytes that a recording may have: cut it into parts"},
		"a long name":         {[]part{speech, model, {strings.Repeat("n", 100_000), "", "a"}}, 400, "name is longer than 256 bytes"},
		"a long prompt":       {[]part{speech, model, {"prompt", "", strings.Repeat("a", maxSpeechPrompt+1)}}, 400, "prompt: must have at most 8192 bytes"},
		"no UTF-8":            {[]part{speech, model, {"prompt", "", "\xff"}}, 400, "prompt: must be UTF-8"},
		"many fields":         {append(make([]part, maxFormFields), speech), 400, "more than 128 fields"},
		"a late fault":        {[]part{{"diarize", "", "1"}, {"temperature", "", "2"}, speech, model, {"stream", "", "x"}}, 400, "temperature: must be a number"},
	} {
		t.Run(name, func(t *testing.T) {
			r := s.parts(c.parts...)
			r.ContentLength = -1 // not told before
			a := s.send(r)
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), c.says)
			s.nothingStays()
		})
	}
	for _, kind := range []string{"", "application/json", "multipart/form-data", "multipart/mixed; boundary=b", "audio/wav"} {
		r := s.request(http.MethodPost, "/v1/audio/transcriptions", "inference", strings.NewReader("--b--"))
		r.Header.Set("Content-Type", kind)
		refusedWith(t, s.send(r), 400, "multipart/form-data")
	}
	r := s.parts(speech, model)
	whole, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	for cut := range len(whole) - len("--\r\n") {
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(whole[:cut])), int64(cut)
		a := s.send(r.Clone(t.Context()))
		require.Equal(t, 400, a.status, "cut at %d: %s", cut, a.body)
	}
	s.nothingStays()
}

func TestGranularitiesInEverySpelling(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
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
			refusedWith(t, a, 400, name+": must be word, segment")
		}
	}
}

func TestTemperatures(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	for text, want := range map[string][]float64{"": nil, "0": {0}, "0.37": {0.37}, "1.0": {1}, "0.0,0.2,0.4,0.6,0.8,1.0": {0, 0.2, 0.4, 0.6, 0.8, 1}, "0.2, 0.8": {0.2, 0.8}} {
		a := s.transcribe("go", "temperature="+text)
		require.Equal(t, 200, a.status, "%s: %s", text, a.body)
		require.Equal(t, want, s.replicas.heard[len(s.replicas.heard)-1].Options.Temperature)
	}
	for _, wrong := range []string{"-0.2", "1.2", "NaN", "inf", "warm", "0.2,", "0.1,0.3", "0.4,0.2", "0.2,0.2", "0x1p-2,1", ","} {
		refusedWith(t, s.transcribe("go", "temperature="+wrong), 400, "temperature: must be a number from 0 to 1")
	}
}

// All that a form asks for reaches the engine.
func TestWhatAnEngineIsAsked(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	a := s.transcribe("go forward", "response_format=verbose_json", "timestamp_granularities=word", "language=DE", "prompt=Um, I", "temperature=0.2", "task=translate", "vad_model=silero",
		"alignment_model=mms_fa", "preprocessing=bass_dynamic", "diarize=true", "min_speakers=2", "max_speakers=inf")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "translate", a.json(t)["task"])
	got := s.replicas.heard[0]
	require.EqualValues(t, len("go forward"), got.Audio.Size)
	got.Audio = engines.AudioFile{}
	require.Equal(t, engines.TranscriptionRequest{Preprocessing: engines.PreprocessBassDynamic, Options: engines.TranscriptionOptions{Language: "de", Prompt: "Um, I", Temperature: []float64{0.2},
		Translate: true, VAD: "silero", Alignment: "mms_fa", Words: true, Diarize: true, MinSpeakers: 2}}, got)
	require.Equal(t, "10.5", s.transcribed(t, strings.Repeat("la ", 21)).header.Get("anneal-audio-seconds"))
}

func (s *stage) transcribed(t *testing.T, text string) answer {
	t.Helper()
	a := s.transcribe(text)
	require.Equal(t, 200, a.status, "%s", a.body)
	return a
}

// What a model cannot honour is refused by the names of the form, and not asked
// of another replica.
func TestARefusedOption(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(3)
	s.replicas.hear = func(context.Context, domain.Replica, engines.TranscriptionRequest, func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		var v domain.Violations
		v.Add("language", "must be en: the model knows no other")
		v.Add("task", "must be transcribe: the model does not translate")
		return engines.Transcript{}, v.Err()
	}
	a := s.transcribe("geh vor", "language=de", "task=translate", "stream=true")
	refusedWith(t, a, 400, "language: must be en", "task: must be transcribe")
	require.Equal(t, "language", a.json(t)["error"].(map[string]any)["param"])
	require.Len(t, s.replicas.asks(), 1)
	s.nothingStays()
}

// dying hears the first n lines on the first replica that is asked, whose
// worker then dies.
func dying(n int) func(context.Context, domain.Replica, engines.TranscriptionRequest, func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	var asked atomic.Int32
	return func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		if asked.Add(1) > 1 {
			return readAloud(ctx, req, emit)
		}
		died := domain.Errorf(domain.Unavailable, "the node is gone")
		heard := 0
		_, err := readAloud(ctx, req, func(step engines.TranscriptEvent) error {
			if heard++; heard > n {
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

// A worker that dies in the middle: another one begins anew, and nothing comes
// twice.
func TestAListenerThatDies(t *testing.T) {
	const text = "one two\nthree four\nfive six\n"
	for n := range 3 {
		for _, streamed := range []string{"false", "true"} {
			s := newStage(t, Limits{})
			s.hearers(2)
			s.replicas.hear = dying(n)
			a := s.transcribe(text, "stream="+streamed, "response_format=verbose_json", "timestamp_granularities=word,segment")
			require.Equal(t, 200, a.status, "%s", a.body)
			require.Len(t, s.replicas.asks(), 2)
			whole := map[string]any{}
			if streamed == "true" {
				said := ""
				for _, event := range pieces(t, string(a.body)) {
					if delta, ok := event["delta"].(string); ok {
						said += delta
					}
					if event["type"] == eventDone {
						whole = event["transcript"].(map[string]any)
					}
				}
				require.Equal(t, "one two three four five six", said, "after %d lines", n)
			} else {
				whole = a.json(t)
			}
			require.Equal(t, "one two three four five six", whole["text"])
			require.Len(t, whole["words"], 6)
			require.Len(t, whole["segments"], 3)
			s.nothingStays()
		}
	}
}

// A replica that begins anew may cut elsewhere: of a segment that was told in
// part comes the rest.
func TestASegmentThatWasToldInPart(t *testing.T) {
	word := func(text string, start float64) engines.Word {
		return engines.Word{Text: text, Start: start, End: start + 1}
	}
	all := engines.Segment{Start: 0, End: 3, Text: "a b c", Words: []engines.Word{word("a", 0), word("b", 1), word("c", 2)}}
	for told, want := range map[float64]string{0: "a b c", 1: "b c", 1.2: "b c", 1.8: "c", 2.9: "", 3: ""} {
		rest, ok := since(all, told)
		require.Equal(t, want != "", ok, "%v", told)
		if ok {
			require.Equal(t, want, rest.Text, "%v", told)
			require.GreaterOrEqual(t, rest.Start, told)
		}
	}
	all.Words = nil
	_, ok := since(all, 1)
	require.True(t, ok, "most of it is new")
	_, ok = since(all, 2)
	require.False(t, ok)
}

// What a stream tells piece by piece is the text that it ends with, also of
// silence.
func TestDeltasAreTheText(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	for _, text := range []string{"one two\nthree\n", "\n"} {
		for _, format := range transcriptFormats {
			a := s.transcribe(text, "stream=true", "response_format="+format)
			require.Equal(t, 200, a.status, "%s", a.body)
			said := ""
			for _, event := range pieces(t, string(a.body)) {
				if delta, ok := event["delta"].(string); ok {
					said += delta
				}
				if event["type"] == eventDone {
					require.Equal(t, event["text"], said, "%s of %q", format, text)
				}
			}
		}
	}
}

func TestNoListenerIsLeft(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(2)
	s.replicas.hear = func(_ context.Context, _ domain.Replica, _ engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		err := emit(engines.TranscriptEvent{Seconds: 1, Segment: &engines.Segment{Text: "one", End: 1}})
		return engines.Transcript{}, errors.Join(err, domain.Errorf(domain.Unavailable, "the node is gone"))
	}
	refusedWith(t, s.transcribe("one"), 503, "no replica of "+hearer+" could be reached")
	a := s.transcribe("one", "stream=true")
	require.Equal(t, 200, a.status, "it has begun")
	require.Equal(t, 1, strings.Count(string(a.body), eventDelta), "%s", a.body)
	require.Contains(t, string(a.body), `data: {"error":`)
	require.NotContains(t, string(a.body), "[DONE]")
	s.nothingStays()
}

// A closed connection stops the listening, and the recording is removed.
func TestAClientThatHangsUp(t *testing.T) {
	for _, streamed := range []string{"true", "false"} {
		s := newStage(t, Limits{})
		s.hearers(2)
		began, ended := make(chan struct{}), make(chan error, 1)
		s.replicas.hear = func(ctx context.Context, _ domain.Replica, _ engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
			err := emit(engines.TranscriptEvent{Seconds: 1, Segment: &engines.Segment{Text: "one", End: 1}})
			close(began)
			<-ctx.Done()
			ended <- errors.Join(err, ctx.Err())
			return engines.Transcript{}, ctx.Err()
		}
		ctx, hangUp := context.WithCancel(t.Context())
		r := s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader("one"), "model="+hearer, "stream="+streamed).WithContext(ctx)
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
		require.Len(t, s.replicas.asks(), 1, "it is not asked for elsewhere")
	}
}

func TestListeningHasATimeLimit(t *testing.T) {
	s := newStage(t, Limits{Transcription: 20 * time.Millisecond})
	s.hearers(2)
	s.replicas.hear = func(ctx context.Context, _ domain.Replica, _ engines.TranscriptionRequest, _ func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		<-ctx.Done()
		return engines.Transcript{}, ctx.Err()
	}
	refusedWith(t, s.transcribe("one"), 504, "took longer than the 20ms that it may take, and came to second 0: cut it into parts, such as `ffmpeg")
	require.Contains(t, s.logged.String(), "level=WARN")
	require.NotContains(t, s.logged.String(), "level=ERROR", "the operator has set this limit")
	s.nothingStays()
}

func TestHowManyTranscriptionsThereAreAtOnce(t *testing.T) {
	s := newStage(t, Limits{Transcriptions: 1})
	s.hearers(1)
	began, end := make(chan struct{}), make(chan struct{})
	s.replicas.hear = func(ctx context.Context, _ domain.Replica, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
		close(began)
		<-end
		return readAloud(ctx, req, emit)
	}
	first := make(chan answer)
	go func() { first <- s.transcribe("one") }()
	<-began
	refusedWith(t, s.transcribe("two"), 429, "accounts/acme has 1 transcriptions under way")
	close(end)
	require.Equal(t, 200, (<-first).status)
}

func TestWhoMayTranscribe(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	ask := func(path, authorization string) answer {
		r := s.form(path, "", "file", "speech.wav", strings.NewReader("one"), "model="+hearer)
		r.Header.Set("Authorization", authorization)
		return s.send(r)
	}
	for _, path := range []string{"/v1/audio/transcriptions", "/v1/audio/translations", "/inference/v1/audio/transcriptions", "/inference/v1/audio/translations"} {
		for _, role := range []string{"admin", "user", "inference", "operator"} {
			for _, scheme := range []string{"", "Bearer ", "bearer "} {
				require.Equal(t, 200, ask(path, scheme+s.keys[role]).status, "%q %s", scheme, role)
			}
		}
		refusedWith(t, ask(path, "Basic "+s.keys["user"]), 401)
		refusedWith(t, ask(path, s.keys["other"]), 403)
	}
	s.do(domain.Intend(domain.Accounts, "accounts/acme", domain.Command[domain.Account](domain.SuspendAccount{SuspendState: "FAILED_PAYMENTS"})))
	refusedWith(t, s.transcribe("one"), 412, "suspended")
}

// Formats that are not JSON are kept for an Idempotency-Key as JSON is; a
// stream is not.
func TestRepeatedTranscriptions(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	ask := func(key string, fields ...string) answer {
		r := s.form("/v1/audio/transcriptions", "inference", "file", "speech.wav", strings.NewReader("one"), append(fields, "model="+hearer)...)
		r.Header.Set(request.IdempotencyHeader, key)
		return s.send(r)
	}
	for i, format := range transcriptFormats {
		first, second := ask(fmt.Sprint(i), "response_format="+format), ask(fmt.Sprint(i), "response_format="+format)
		require.Equal(t, 200, first.status, "%s", first.body)
		require.Equal(t, string(first.body), string(second.body))
		require.Equal(t, first.header.Get("Content-Type"), second.header.Get("Content-Type"))
		require.Equal(t, "true", second.header.Get(request.ReplayedHeader))
	}
	require.Len(t, s.replicas.asks(), len(transcriptFormats))
	refusedWith(t, ask("streamed", "stream=true"), 400, "stream: cannot go with Idempotency-Key")
}

func TestAStrictServerRefusesUnknownFields(t *testing.T) {
	s := newStage(t, Limits{})
	s.hearers(1)
	s.server.Strict = true
	refusedWith(t, s.transcribe("one", "colour=red", "temperature=9"), 400, "colour: is not a field here", "temperature: must")
}
