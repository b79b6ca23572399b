package api

import (
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

const (
	taskTranscribe = "transcribe"
	taskTranslate  = "translate"
)

// Limits of the options of a transcription (spec/interface.md 2.13).
const (
	maxSpeechPrompt = 8 << 10 // bytes
	maxSpeakers     = 1000
	maxURL          = 8 << 10
	temperatureStep = 0.2
)

var preprocessings = []string{engines.PreprocessNone, engines.PreprocessDynamic, engines.PreprocessSoftDynamic, engines.PreprocessBassDynamic}

// A transcriptionRequest is what a transcription asks for, checked and with its
// defaults.
type transcriptionRequest struct {
	model    string
	format   string
	words    bool // are told, in verbose_json
	segments bool
	stream   bool
	asked    engines.TranscriptionRequest // all but the recording
	from     string                       // where the recording is, when it was not uploaded
	idle     []string                     // options that have no effect beside the others
}

// task is the word for what is asked.
func (q *transcriptionRequest) task() string {
	if q.asked.Options.Translate {
		return taskTranslate
	}
	return taskTranscribe
}

// verbose tells whether the format tells times; one that is not known may.
func (q *transcriptionRequest) verbose() bool { return q.format == formatVerbose || q.format == "" }

// read checks the options all together. A translation is asked for by its path.
func (in *recording) read(translation bool) (*transcriptionRequest, error) {
	q := &transcriptionRequest{}
	if in.server.Strict {
		for _, name := range in.unknown {
			in.violations.Add(wire.Join("", name), "is not a field here: leave it out")
		}
	}
	in.readFile(q)
	q.model = in.text("model", 512)
	in.require(q.model != "", "model", "is required: a speech model, or its deployment, such as speech-v3")
	if q.format = in.choice("response_format", transcriptFormats...); !in.given("response_format") {
		q.format = formatJSON
	}
	in.readGranularities(q)
	q.stream = in.flag("stream")
	in.require(!q.stream || !in.HasIdempotencyKey(), "stream", "cannot go with %s: a streamed answer is not kept; leave out one of the two", request.IdempotencyHeader)
	o := &q.asked.Options
	task := in.choice("task", taskTranscribe, taskTranslate)
	o.Translate = translation || task == taskTranslate
	in.require(!translation || task != taskTranscribe, "task", "must be translate on this path: ask /v1/audio/transcriptions to transcribe")
	o.Language = strings.ToLower(in.text("language", 64))
	in.require(o.Language == "" || slices.Contains(domain.SpeechLanguages, o.Language), "language", "%s is not a code that can be asked for, such as en, de or zh-hans (/docs lists all %d): leave it out to have the language detected", wire.Quote(o.Language), len(domain.SpeechLanguages))
	o.Prompt = in.text("prompt", maxSpeechPrompt)
	o.Temperature = in.temperatures()
	o.VAD, o.Alignment = in.choice("vad_model", domain.VADModels...), in.choice("alignment_model", domain.AlignmentModels...)
	q.asked.Preprocessing = in.choice("preprocessing", preprocessings...)
	in.readSpeakers(q)
	return q, in.violations.Err()
}

// readFile finds the recording: one upload, or one URL.
func (in *recording) readFile(q *transcriptionRequest) {
	links := append(slices.Clone(in.values["file"]), in.values["url"]...)
	size, uploaded := in.files.Sizes[audioFile]
	switch n := in.uploads + len(links); {
	case n == 0:
		in.violations.Add("file", "is required: the recording as a file, or its URL")
	case n > 1:
		in.violations.Add("file", "is given %d times: give one recording, as a file or as a URL", n)
	case uploaded:
		in.require(size > 0, "file", "is empty: send the recording")
	default:
		q.from = links[0]
		field := "url"
		if len(in.values["file"]) > 0 {
			field = "file"
		}
		in.require(isLink(q.from), field, "must be a file, or a URL that begins with http:// or https://, names a host, has at most %d bytes, and carries neither a user's name nor a password", maxURL)
	}
}

// isLink tells whether a text is a URL that may be fetched.
func isLink(text string) bool {
	at, err := url.Parse(text)
	return err == nil && len(text) <= maxURL && (at.Scheme == "http" || at.Scheme == "https") && at.Hostname() != "" && at.User == nil
}

// readGranularities reads which times are told: a text such as word,segment, or
// several of these, under either of the two names that clients know.
func (in *recording) readGranularities(q *transcriptionRequest) {
	const name = "timestamp_granularities"
	q.segments = !in.given(name)
	for _, text := range in.values[name] {
		for one := range strings.SplitSeq(text, ",") {
			switch strings.TrimSpace(one) {
			case "word":
				q.words = true
			case "segment":
				q.segments = true
			default:
				in.violations.Add(name, "must be word, segment, or word,segment, not %s", wire.Quote(one))
			}
		}
	}
	in.require(!in.given(name) || q.verbose(), name, "needs response_format verbose_json: set it as well, or leave this out")
	q.asked.Options.Words = q.words
}

// temperatures reads a number, or a list that is tried one after the other.
func (in *recording) temperatures() (list []float64) {
	const rule = "must be a number from 0 to 1, or several in rising steps of 0.2, such as 0.0,0.2,0.4"
	text := in.text("temperature", 64)
	if text == "" {
		return nil
	}
	parts := strings.Split(text, ",")
	for _, part := range parts {
		n, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		steps := n / temperatureStep
		onStep := math.Abs(steps-math.Round(steps)) < 1e-6
		if err != nil || !(n >= 0 && n <= 1) || len(parts) > 1 && !onStep || len(list) > 0 && n <= list[len(list)-1] {
			in.violations.Add("temperature", rule)
			return nil
		}
		list = append(list, n)
	}
	return list
}

// readSpeakers reads who is told apart.
func (in *recording) readSpeakers(q *transcriptionRequest) {
	o := &q.asked.Options
	o.Diarize = in.flag("diarize")
	in.require(!o.Diarize || q.verbose(), "diarize", "needs response_format verbose_json: set it as well")
	in.require(!o.Diarize || q.words, "diarize", "needs timestamp_granularities with word: set it to word, or word,segment")
	least := in.whole("min_speakers", 1, maxSpeakers)
	most := 0
	if !slices.Equal(in.values["max_speakers"], []string{"inf"}) {
		most = in.whole("max_speakers", 1, maxSpeakers)
	}
	in.require(most == 0 || least <= most, "min_speakers", "is above max_speakers: lower it, or raise max_speakers")
	if o.Diarize {
		o.MinSpeakers, o.MaxSpeakers = least, most
		return
	}
	for _, name := range []string{"min_speakers", "max_speakers"} {
		if in.given(name) {
			q.idle = append(q.idle, name)
		}
	}
}

// The fields of a form, read one by one as those of JSON are.

func (in *recording) given(name string) bool { return len(in.values[name]) > 0 }

func (in *recording) require(ok bool, name, format string, args ...any) {
	in.violations.Require(ok, name, format, args...)
}

func (in *recording) text(name string, most int) string {
	values := in.values[name]
	if len(values) == 0 {
		return ""
	}
	in.require(len(values) == 1, name, "is given %d times: give it once", len(values))
	in.require(len(values[0]) <= most, name, "must have at most %d bytes", most)
	return values[0]
}

func (in *recording) flag(name string) bool {
	switch strings.ToLower(in.text(name, 64)) {
	case "true", "1":
		return true
	case "", "false", "0":
	default:
		in.violations.Add(name, "must be true or false")
	}
	return false
}

func (in *recording) choice(name string, allowed ...string) string {
	text := in.text(name, 64)
	if text == "" || slices.Contains(allowed, text) {
		return text
	}
	in.violations.Add(name, "must be one of %s", strings.Join(allowed, ", "))
	return ""
}

func (in *recording) whole(name string, low, high int) int {
	text := in.text(name, 64)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		in.violations.Add(name, "must be a whole number from %d to %d", low, high)
		return 0
	}
	return n
}
