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

// speechFields are the form fields of each server; a fake server rejects all others.
var speechFields = map[string][]string{
	domain.SpeechFasterWhisper: {
		"model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "stream",
		"hotwords", "without_timestamps", "vad_filter", "vad_model", "alignment_model",
	},
	domain.SpeechWhisperCPP: {
		"language", "prompt", "response_format", "temperature", "temperature_inc", "translate", "vad",
		"no_language_probabilities",
	},
	domain.SpeechOpenAI: {
		"model", "language", "prompt", "response_format", "temperature", "timestamp_granularities[]", "vad_model",
		"alignment_model",
	},
}

// A fakeSpeechServer implements a server's transcription API. It transcribes each interval of
// constant volume as one segment with one word, "loud" or "soft".
type fakeSpeechServer struct {
	dialect, mode string
	busy          atomic.Int32
}

func (f *fakeSpeechServer) routes(flags map[string]string) http.Handler {
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

// samples returns the samples of the form's WAV file.
func (f *fakeSpeechServer) samples(r *http.Request) ([]byte, error) {
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

// checkRequest checks the API key and the names of the form's fields.
func (f *fakeSpeechServer) checkRequest(r *http.Request) error {
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
			return fmt.Errorf("unknown field %s", name)
		}
	}
	return nil
}

func (f *fakeSpeechServer) transcribe(w http.ResponseWriter, r *http.Request) {
	if f.busy.Add(1); f.dialect == domain.SpeechWhisperCPP && f.busy.Load() > 1 {
		writeError(w, http.StatusInternalServerError, "two requests at once")
		return
	}
	defer f.busy.Add(-1)
	if err := f.checkRequest(r); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	pcm, err := f.samples(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	if len(r.MultipartForm.Value["prompt"]) > 0 && r.FormValue("prompt") == "die" {
		fmt.Fprintln(os.Stderr, "Segmentation fault")
		os.Exit(11)
	}
	writeJSON(w, f.verboseJSON(r, pcm))
}

// verboseJSON returns a transcription in the server's format.
func (f *fakeSpeechServer) verboseJSON(r *http.Request, pcm []byte) body {
	var words, segments []body
	withWords := slices.Contains(r.MultipartForm.Value["timestamp_granularities[]"], "word")
	for n, interval := range intervals(pcm) {
		word, start := interval.word, interval.start
		parts := []body{{"word": " " + word, "start": start, "end": start + 0.4, "probability": 0.9}}
		if f.dialect == domain.SpeechWhisperCPP { // tokens instead of words
			parts = []body{
				{"word": " " + word[:2], "start": start, "end": start + 0.2, "probability": 0.9},
				{"word": word[2:], "start": start + 0.2, "end": start + 0.4, "probability": 0.8},
			}
		}
		words = append(words, parts...)
		segment := body{"id": len(segments), "start": start, "end": start + 0.5, "text": " " + word, "tokens": []int{n},
			"avg_logprob": -0.1, "temperature": 0.0}
		if r.FormValue("temperature") == "0.2" {
			segment["temperature"] = 0.2
		} else if f.mode == "lowLogprob" {
			segment["avg_logprob"] = -1.5
		}
		if f.dialect == domain.SpeechWhisperCPP {
			segment["words"] = parts
		}
		segments = append(segments, segment)
	}
	all := body{"task": "transcribe", "language": "english", "duration": fmt.Sprint(len(pcm) / 32000), "text": "",
		"segments": segments}
	if withWords && f.mode != "noWords" {
		all["words"] = words
	}
	if f.mode == "echo" { // return the request's path and fields as the text
		var fields []string
		for name, values := range r.MultipartForm.Value {
			fields = append(fields, name+"="+strings.Join(values, "+"))
		}
		slices.Sort(fields)
		all["segments"] = []body{{"text": r.URL.Path + " " + strings.Join(fields, " ")}}
	}
	return all
}

// diarize returns one speaker for the loud intervals and another for the soft ones.
func (f *fakeSpeechServer) diarize(w http.ResponseWriter, r *http.Request) {
	if err := f.checkRequest(r); err != nil || r.FormValue("model") != "pyannote" {
		writeError(w, http.StatusBadRequest, fmt.Sprint("unknown model, or: ", err))
		return
	}
	pcm, err := f.samples(r)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	var turns []body
	for _, one := range intervals(pcm) {
		speaker := map[string]string{"loud": "SPEAKER_00", "soft": "SPEAKER_01"}[one.word]
		turns = append(turns, body{"start": one.start - 0.1, "end": one.start + 0.45, "speaker": speaker})
	}
	writeJSON(w, body{"duration": 1, "segments": turns})
}

// An interval is a part of a recording with a constant volume.
type interval struct {
	word  string
	start float64 // seconds
}

// intervals returns the intervals of a recording that are not silent, measured every 10 ms.
func intervals(pcm []byte) (all []interval) {
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
			all = append(all, interval{word, float64(at/frame) / 100})
		}
		last = word
	}
	return all
}

// writeSpeechModel writes a model that each fake server can load.
func writeSpeechModel(dir string) error {
	return os.WriteFile(filepath.Join(dir, "ggml-tiny.bin"), []byte("weights"), 0o600)
}
