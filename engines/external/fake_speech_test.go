package external

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"anneal/domain"
	"anneal/engines"
)

// speechFields are those that each server takes; a fake refuses all others.
var speechFields = map[string][]string{
	domain.SpeechFasterWhisper: {"model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "stream",
		"hotwords", "without_timestamps", "vad_filter", "vad_model", "alignment_model"},
	domain.SpeechWhisperCPP: {"language", "prompt", "response_format", "temperature", "temperature_inc", "translate", "vad", "no_language_probabilities"},
	domain.SpeechOpenAI:     {"model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "vad_model", "alignment_model"},
}

// A fakeEar answers as a server does. It hears a word as long as sound is as
// loud, and which one depends on how loud that is; each is a segment.
type fakeEar struct {
	dialect, mode string
	busy          atomic.Int32
}

func (f *fakeEar) routes(flags map[string]string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	path := transcriptions
	if f.dialect == domain.SpeechWhisperCPP {
		path = flags["--inference-path"]
		if _, err := os.Stat(flags["-m"]); err != nil {
			panic(err)
		}
	} else {
		mux.HandleFunc("POST /v1/audio/translations", f.transcribe)
	}
	mux.HandleFunc("POST "+path, f.transcribe)
	if f.dialect == domain.SpeechFasterWhisper {
		mux.HandleFunc("POST /v1/audio/diarization", f.diarize)
	}
	return mux
}

func (f *fakeEar) refuse(w http.ResponseWriter, status int, message string) {
	(&fake{}).refuse(w, status, message)
}

// sound is the samples of a form's file, which must be a WAV file of them.
func (f *fakeEar) sound(r *http.Request) ([]byte, error) {
	file, _, err := r.FormFile("file")
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(file)
	if err != nil {
		return nil, err
	}
	if len(content) < 44 || !bytes.Equal(content[:44], wavHeader(int64(len(content)-44))) {
		return nil, fmt.Errorf("no WAV file: %q", content[:min(44, len(content))])
	}
	return content[44:], nil
}

func (f *fakeEar) allowed(r *http.Request) error {
	if f.dialect != domain.SpeechWhisperCPP {
		if r.Header.Get("Authorization") != "Bearer "+os.Getenv(dialects[f.dialect].preset.keyEnv) {
			return fmt.Errorf("Invalid API Key")
		}
	}
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		return err
	}
	for name := range r.MultipartForm.Value {
		if !slices.Contains(speechFields[f.dialect], name) {
			return fmt.Errorf("the field %s is not known", name)
		}
	}
	return nil
}

func (f *fakeEar) transcribe(w http.ResponseWriter, r *http.Request) {
	if f.busy.Add(1); f.dialect == domain.SpeechWhisperCPP && f.busy.Load() > 1 {
		f.refuse(w, http.StatusInternalServerError, "two requests at once")
		return
	}
	defer f.busy.Add(-1)
	if err := f.allowed(r); err != nil {
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	pcm, err := f.sound(r)
	if err != nil {
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if len(r.MultipartForm.Value["prompt"]) > 0 && r.FormValue("prompt") == "die" {
		fmt.Fprintln(os.Stderr, "Segmentation fault")
		os.Exit(11)
	}
	(&fake{}).say(w, f.answer(r, pcm))
}

// answer is verbose_json as the server writes it.
func (f *fakeEar) answer(r *http.Request, pcm []byte) body {
	var words, segments []body
	granular := slices.Contains(r.MultipartForm.Value["timestamp_granularities[]"], "word")
	for n, heard := range heardIn(pcm) {
		word, start := heard.word, heard.start
		told := []body{{"word": " " + word, "start": start, "end": start + 0.4, "probability": 0.9}}
		if f.dialect == domain.SpeechWhisperCPP { // tokens
			told = []body{{"word": " " + word[:2], "start": start, "end": start + 0.2, "probability": 0.9}, {"word": word[2:], "start": start + 0.2, "end": start + 0.4, "probability": 0.8}}
		}
		words = append(words, told...)
		segment := body{"id": len(segments), "start": start, "end": start + 0.5, "text": " " + word, "tokens": []int{n}, "avg_logprob": -0.1, "temperature": 0.0}
		if r.FormValue("temperature") == "0.2" {
			segment["temperature"] = 0.2
		} else if f.mode == "guesses" {
			segment["avg_logprob"] = -1.5
		}
		if f.dialect == domain.SpeechWhisperCPP {
			segment["words"] = told
		}
		segments = append(segments, segment)
	}
	all := body{"task": "transcribe", "language": "english", "duration": fmt.Sprint(len(pcm) / 32000), "text": "", "segments": segments}
	if granular && f.mode != "wordless" {
		all["words"] = words
	}
	if fields := r.MultipartForm.Value; f.mode == "echo" { // what it was asked with, as text
		var told []string
		for name, values := range fields {
			told = append(told, name+"="+strings.Join(values, "+"))
		}
		slices.Sort(told)
		all["segments"] = []body{{"text": r.URL.Path + " " + strings.Join(told, " ")}}
	}
	return all
}

// diarize hears one who speaks loudly, and one who does not.
func (f *fakeEar) diarize(w http.ResponseWriter, r *http.Request) {
	if err := f.allowed(r); err != nil || r.FormValue("model") != "pyannote" {
		f.refuse(w, http.StatusBadRequest, fmt.Sprint("no such model, or: ", err))
		return
	}
	pcm, err := f.sound(r)
	if err != nil {
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	var turns []body
	for _, heard := range heardIn(pcm) {
		who := map[string]string{"loud": "SPEAKER_00", "soft": "SPEAKER_01"}[heard.word]
		turns = append(turns, body{"start": heard.start - 0.1, "end": heard.start + 0.45, "speaker": who})
	}
	(&fake{}).say(w, body{"duration": 1, "segments": turns})
}

// A run is as long as sound is as loud as a word is.
type run struct {
	word  string
	start float64
}

// heardIn is the words in sound, by its loudness in each 10 ms.
func heardIn(pcm []byte) (runs []run) {
	const frame = engines.SampleRate / 100 * 2
	last := ""
	for at := 0; at < len(pcm); at += frame {
		word := ""
		if level := int(int16(binary.LittleEndian.Uint16(pcm[at:]))); level > 8000 {
			word = "loud"
		} else if level > 500 {
			word = "soft"
		}
		if word != last && word != "" {
			runs = append(runs, run{word, float64(at/frame) / 100})
		}
		last = word
	}
	return runs
}

// speechFiles are a model that each server can be started with.
func speechFiles(dir string) error {
	return os.WriteFile(filepath.Join(dir, "ggml-tiny.bin"), []byte("weights"), 0o600)
}
