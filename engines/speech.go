package engines

import (
	"compress/zlib"
	"context"
	"io"

	"anneal/domain"
)

// SampleRate is the rate of the audio that engines transcribe, in hertz.
const SampleRate = 16000

// A Transcriber loads speech models of one format.
type Transcriber interface {
	// LoadSpeech loads a model. Its directory must not change until the model
	// is closed. A *domain.Error with code InvalidArgument or FailedPrecondition
	// is a permanent error of the model.
	LoadSpeech(ctx context.Context, files SpeechFiles) (SpeechModel, error)
}

// SpeechFiles locates a speech model on this node's disk and holds its settings.
type SpeechFiles struct {
	Dir      string
	Settings domain.SpeechSettings
	Devices  []Device // devices allocated to the replica; may be empty
	Trusted  bool     // whether the operator, not a tenant, provides the model
}

// A SpeechModel is a loaded speech model. It is safe for concurrent use.
type SpeechModel interface {
	Info() SpeechModelInfo
	// Check returns an error that lists all options that this model does not support, by the names of
	// the API's form fields. It is called before the audio is downloaded.
	Check(options TranscriptionOptions) error
	// Transcribe reads 16-bit little-endian mono samples at SampleRate until pcm
	// ends, and emits segments in order of time. Its memory does not grow with the
	// length of the audio. It returns soon after ctx is done or emit fails. Silence
	// is not an error and has no segments.
	Transcribe(
		ctx context.Context, pcm io.Reader, options TranscriptionOptions, emit func(TranscriptEvent) error,
	) (Transcript, error)
	Close() error
}

// SpeechModelInfo describes a loaded speech model.
type SpeechModelInfo struct {
	Slots     int      // recordings transcribed concurrently
	Languages []string // supported language codes; empty is unknown
}

// A TranscriptionRequest is the request for one transcription.
type TranscriptionRequest struct {
	Audio         AudioFile            `json:"audio"`
	Preprocessing string               `json:"preprocessing,omitempty"` // "", PreprocessNone, PreprocessDynamic …
	Options       TranscriptionOptions `json:"options"`
}

// An AudioFile locates an uploaded recording, which the replica downloads.
type AudioFile struct {
	URL  string `json:"url"`
	Size int64  `json:"size"` // bytes
}

// Values of TranscriptionRequest.Preprocessing.
const (
	PreprocessNone        = "none"
	PreprocessDynamic     = "dynamic"
	PreprocessSoftDynamic = "soft_dynamic"
	PreprocessBassDynamic = "bass_dynamic"
)

// TranscriptionOptions are the options of a transcription that engines implement.
type TranscriptionOptions struct {
	Language    string    `json:"language,omitempty"` // "" detects the language
	Prompt      string    `json:"prompt,omitempty"`
	Temperature []float64 `json:"temperature,omitempty"` // fallback temperatures, in order; empty is the engine's default
	Translate   bool      `json:"translate,omitempty"`   // translate into English
	VAD         string    `json:"vad,omitempty"`         // voice activity detection: "", VADSilero, VADPyannet
	Alignment   string    `json:"alignment,omitempty"`   // forced alignment of words: "", AlignMMS, AlignTDNN
	Words       bool      `json:"words,omitempty"`       // return word timestamps
	Diarize     bool      `json:"diarize,omitempty"`     // label speakers
	MinSpeakers int       `json:"minSpeakers,omitempty"` // minimum number of speakers for Diarize; 0 is unset
	MaxSpeakers int       `json:"maxSpeakers,omitempty"`
}

// Auxiliary models of a transcription. A speech model's settings map them to the
// names that its server uses.
const (
	VADSilero  = "silero"
	VADPyannet = "speechx-pyannet"
	AlignMMS   = "mms_fa"
	AlignTDNN  = "tdnn_ffn"
)

// A TranscriptEvent reports the progress of a transcription.
type TranscriptEvent struct {
	Seconds float64  `json:"seconds"`           // seconds of audio processed so far
	Segment *Segment `json:"segment,omitempty"` // the new segment, if any
}

// A Segment is one segment of a transcript. Times are in seconds from the start
// of the recording; the words are within the segment and make up its text.
type Segment struct {
	Start            float64 `json:"start"`
	End              float64 `json:"end"`
	Text             string  `json:"text"`
	Words            []Word  `json:"words,omitempty"`
	Tokens           []int   `json:"tokens,omitempty"`
	Temperature      float64 `json:"temperature"`
	AvgLogprob       float64 `json:"avgLogprob"`
	CompressionRatio float64 `json:"compressionRatio"`
	NoSpeechProb     float64 `json:"noSpeechProb"`
	Speaker          string  `json:"speaker,omitempty"`
}

// A Word is one word of a segment.
type Word struct {
	Text        string  `json:"text"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Probability float64 `json:"probability"`
	Language    string  `json:"language,omitempty"`
	Speaker     string  `json:"speaker,omitempty"`
}

// A Transcript holds the result of a transcription without its segments.
type Transcript struct {
	Language string  `json:"language"` // requested or detected language
	Duration float64 `json:"duration"` // duration of the recording, in seconds
}

// CompressionRatio returns the length of a text divided by its compressed
// length. A high ratio indicates a repetitive text.
func CompressionRatio(text string) float64 {
	var packed counter
	w := zlib.NewWriter(&packed)
	_, _ = io.WriteString(w, text) // a counter never fails
	_ = w.Close()
	return float64(len(text)) / float64(packed)
}

type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
