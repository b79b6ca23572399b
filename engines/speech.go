package engines

import (
	"compress/zlib"
	"context"
	"io"

	"anneal/domain"
)

// SampleRate is the sample rate of the audio that engines transcribe, in hertz.
const SampleRate = 16000

// A Transcriber loads speech models of one format.
type Transcriber interface {
	// LoadSpeech loads a speech model. The files must not change until the model is closed. A
	// *domain.Error with the code InvalidArgument or FailedPrecondition is a permanent error of the
	// model.
	LoadSpeech(ctx context.Context, files SpeechFiles) (SpeechModel, error)
}

// SpeechFiles are the files of a speech model on this node, and its settings.
type SpeechFiles struct {
	Dir      string
	Settings domain.SpeechSettings
	Devices  []Device // allocated accelerators; may be empty
	Trusted  bool     // the operator, not another account, provides the model
}

// A SpeechModel is a loaded speech model. It is safe for concurrent use.
type SpeechModel interface {
	Info() SpeechModelInfo
	// Check returns an error with all options that the model does not support, by the names of the
	// API's form fields. It is called before the audio is downloaded.
	Check(options TranscriptionOptions) error
	// Transcribe reads 16-bit little-endian mono samples of SampleRate until pcm ends, and emits
	// the segments in the order of their times. Its memory does not grow with the length of the
	// audio. It returns soon after ctx is done or emit has failed. Silence is no error, and has no
	// segments.
	Transcribe(
		ctx context.Context, pcm io.Reader, options TranscriptionOptions, emit func(TranscriptEvent) error,
	) (Transcript, error)
	Close() error
}

// SpeechModelInfo describes a loaded speech model.
type SpeechModelInfo struct {
	Slots     int      // number of recordings that the model transcribes concurrently
	Languages []string // codes of the supported languages; empty if unknown
}

// A TranscriptionRequest requests one transcription.
type TranscriptionRequest struct {
	Audio         AudioFile            `json:"audio"`
	Preprocessing string               `json:"preprocessing,omitempty"` // "" or a value such as PreprocessDynamic
	Options       TranscriptionOptions `json:"options"`
}

// An AudioFile is an uploaded recording, which the replica downloads.
type AudioFile struct {
	URL  string `json:"url"`
	Size int64  `json:"size"` // size of the recording in bytes
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
	Language string `json:"language,omitempty"` // language code; "" detects the language
	Prompt   string `json:"prompt,omitempty"`
	// Temperature has the fallback temperatures, in order; empty stands for the engine's default.
	Temperature []float64 `json:"temperature,omitempty"`
	Translate   bool      `json:"translate,omitempty"`   // translate the transcript to English
	VAD         string    `json:"vad,omitempty"`         // voice activity detection: "", VADSilero or VADPyannet
	Alignment   string    `json:"alignment,omitempty"`   // forced alignment of words: "", AlignMMS or AlignTDNN
	Words       bool      `json:"words,omitempty"`       // return the timestamps of words
	Diarize     bool      `json:"diarize,omitempty"`     // label segments and words with their speakers
	MinSpeakers int       `json:"minSpeakers,omitempty"` // minimum number of speakers for Diarize; 0 sets none
	MaxSpeakers int       `json:"maxSpeakers,omitempty"`
}

// Auxiliary models of a transcription. The settings of a speech model have the name of each of them
// on the model's server.
const (
	VADSilero  = "silero"
	VADPyannet = "speechx-pyannet"
	AlignMMS   = "mms_fa"
	AlignTDNN  = "tdnn_ffn"
)

// A TranscriptEvent reports the progress of a transcription.
type TranscriptEvent struct {
	Seconds float64  `json:"seconds"`           // duration of the audio processed so far, in seconds
	Segment *Segment `json:"segment,omitempty"` // new segment; nil if there is none
}

// A Segment is a segment of a transcript. Times are in seconds from the beginning of the recording.
// The words lie within the segment, and make up its text.
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

// A Transcript is the result of a transcription without its segments.
type Transcript struct {
	Language string  `json:"language"` // code of the requested or detected language
	Duration float64 `json:"duration"` // duration of the recording, in seconds
}

// CompressionRatio returns the length of a text divided by its compressed length. A high ratio
// indicates that the text repeats itself.
func CompressionRatio(text string) float64 {
	var packed counter
	w := zlib.NewWriter(&packed)
	_, _ = io.WriteString(w, text) // writing to a counter never fails
	_ = w.Close()
	return float64(len(text)) / float64(packed)
}

type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
