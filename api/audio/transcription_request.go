package audio

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"anneal/api/download"
	"anneal/api/inert"
	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
)

const (
	taskTranscribe = "transcribe"
	taskTranslate  = "translate"
)

// Limits of the options of a transcription.
const (
	MaxSpeechPrompt = 8 << 10 // maximum size of the field prompt, in bytes
	maxSpeakers     = 1000
	temperatureStep = 0.2
)

var preprocessings = []string{engines.PreprocessNone, engines.PreprocessDynamic, engines.PreprocessSoftDynamic,
	engines.PreprocessBassDynamic}

// A transcriptionRequest is a valid request for a transcription or translation. Absent options have
// their default values.
type transcriptionRequest struct {
	model    string
	format   string
	words    bool // the response in verbose_json contains words
	segments bool // the response in verbose_json contains segments
	stream   bool
	engine   engines.TranscriptionRequest // request to the engine, still without the recording
	source   string                       // URL of the recording; "" if it was uploaded
	inert    []string                     // warnings about options without effect
}

// task returns the field task of the response: transcribe or translate.
func (q *transcriptionRequest) task() string {
	if q.engine.Options.Translate {
		return taskTranslate
	}
	return taskTranscribe
}

// verbose reports whether the response format is verbose_json. It also returns true for an invalid
// format (""), so that fields that require verbose_json cause no further violations.
func (q *transcriptionRequest) verbose() bool { return q.format == formatVerbose || q.format == "" }

// parse validates the fields of the form. It returns the request, or an error with all violations.
// translation is true if the path is that of translations.
func (in *formReader) parse(translation bool) (*transcriptionRequest, error) {
	q := &transcriptionRequest{}
	if in.service.Strict {
		for _, name := range in.unknown {
			in.violations.Add(wire.Join("", name), "is not a field of this form: remove it")
		}
	}
	in.readFile(q)
	q.model = in.text("model", 512)
	in.require(q.model != "", "model", "is required: a speech model, its deployment, or an alias such as speech-v3")
	if q.format = in.enum("response_format", TranscriptFormats...); !in.given("response_format") {
		q.format = formatJSON
	}
	in.readGranularities(q)
	q.stream = in.boolean("stream")
	in.require(!q.stream || !in.HasIdempotencyKey(), "stream",
		"cannot be combined with %s, because streams are not stored: leave out one of them", request.IdempotencyHeader)
	o := &q.engine.Options
	task := in.enum("task", taskTranscribe, taskTranslate)
	o.Translate = translation || task == taskTranslate
	in.require(!translation || task != taskTranscribe, "task",
		"must be translate at this path: send the request to /v1/audio/transcriptions to transcribe")
	o.Language = strings.ToLower(in.text("language", 64))
	in.require(o.Language == "" || slices.Contains(domain.SpeechLanguages, o.Language), "language",
		"%s is not one of the %d language codes that /docs lists, such as en, de or zh-hans: leave the field out to "+
			"detect the language", wire.Quote(o.Language), len(domain.SpeechLanguages))
	o.Prompt = in.text("prompt", MaxSpeechPrompt)
	o.Temperature = in.temperatures()
	o.VAD, o.Alignment = in.enum("vad_model", domain.VADModels...),
		in.enum("alignment_model", domain.AlignmentModels...)
	q.engine.Preprocessing = in.enum("preprocessing", preprocessings...)
	in.readSpeakers(q)
	return q, in.violations.Err()
}

// readFile reads where the recording comes from: one uploaded file, or one URL.
func (in *formReader) readFile(q *transcriptionRequest) {
	urls := append(slices.Clone(in.values["file"]), in.values["url"]...)
	size, uploaded := in.Files.Sizes[audioFile]
	switch n := in.uploads + len(urls); {
	case n == 0:
		in.violations.Add("file", "is required: send a recording as a file, or its URL")
	case n > 1:
		in.violations.Add("file", "the request has %d recordings: send one, as a file or as a URL", n)
	case uploaded:
		in.require(size > 0, "file", "is an empty file: send a recording")
	default:
		q.source = urls[0]
		field := "url"
		if len(in.values["file"]) > 0 {
			field = "file"
		}
		in.require(download.IsFetchable(q.source), field,
			"must be an http or https URL of at most %d bytes with a host, and without a user name or password; to "+
				"upload a recording, send the field file with a file name", domain.MaxURL)
	}
}

// readGranularities reads the field timestamp_granularities, also named timestamp_granularities[].
// It may be given several times, and each value may be a list such as word,segment.
func (in *formReader) readGranularities(q *transcriptionRequest) {
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
	in.require(!in.given(name) || q.verbose(), name,
		"requires response_format verbose_json: set it, or leave out %s", name)
	q.engine.Options.Words = q.words
}

// temperatures reads the field temperature: one number, or a list of numbers that the engine tries
// in order.
func (in *formReader) temperatures() (list []float64) {
	const rule = "must be a number from 0 to 1, or an ascending list of multiples of 0.2, such as 0.0,0.2,0.4"
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

// readSpeakers reads the options of diarization.
func (in *formReader) readSpeakers(q *transcriptionRequest) {
	o := &q.engine.Options
	o.Diarize = in.boolean("diarize")
	in.require(!o.Diarize || q.verbose(), "diarize", "requires response_format verbose_json: set response_format")
	in.require(!o.Diarize || q.words, "diarize",
		"requires timestamp_granularities with word: set timestamp_granularities to word or word,segment")
	low := in.integer("min_speakers", 1, maxSpeakers)
	high := 0
	if !slices.Equal(in.values["max_speakers"], []string{"inf"}) {
		high = in.integer("max_speakers", 1, maxSpeakers)
	}
	in.require(high == 0 || low <= high, "min_speakers", "must not be above max_speakers: lower it, or raise max_speakers")
	if o.Diarize {
		o.MinSpeakers, o.MaxSpeakers = low, high
	}
	given := map[string]any{"diarize": o.Diarize}
	for _, name := range []string{"min_speakers", "max_speakers"} {
		if in.given(name) {
			given[name] = in.values[name][0]
		}
	}
	q.inert = inert.Warnings(inert.Of("createTranscription"), given, inert.Facts{Fields: given})
}

func (in *formReader) given(name string) bool { return len(in.values[name]) > 0 }

func (in *formReader) require(ok bool, name, format string, args ...any) {
	in.violations.Require(ok, name, format, args...)
}

func (in *formReader) text(name string, maxBytes int) string {
	values := in.values[name]
	if len(values) == 0 {
		return ""
	}
	in.require(len(values) == 1, name, "is given %d times: give it once", len(values))
	in.require(len(values[0]) <= maxBytes, name, "must have at most %d bytes, not %d", maxBytes,
		len(values[0]))
	return values[0]
}

func (in *formReader) boolean(name string) bool {
	text := in.text(name, 64)
	switch strings.ToLower(text) {
	case "true", "1":
		return true
	case "", "false", "0":
	default:
		in.violations.Add(name, "must be true or false, not %s", wire.Quote(text))
	}
	return false
}

func (in *formReader) enum(name string, allowed ...string) string {
	text := in.text(name, 64)
	if text == "" || slices.Contains(allowed, text) {
		return text
	}
	in.violations.Add(name, "must be one of %s, not %s%s", strings.Join(allowed, ", "), wire.Quote(text),
		domain.DidYouMean(text, allowed))
	return ""
}

func (in *formReader) integer(name string, low, high int) int {
	text := in.text(name, 64)
	if text == "" {
		return 0
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < low || n > high {
		in.violations.Add(name, "must be a whole number from %d to %d, not %s", low, high, wire.Quote(text))
		return 0
	}
	return n
}
