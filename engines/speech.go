package engines

import (
	"compress/zlib"
	"context"
	"io"

	"anneal/domain"
)

// SampleRate is that of all sound that engines listen to, in samples a second.
const SampleRate = 16000

// A Transcriber makes speech models of one format listen.
type Transcriber interface {
	// LoadSpeech makes a model ready to listen. Its folder stays as it is
	// until the Listener is closed. A *domain.Fault with code InvalidArgument
	// or FailedPrecondition is about the model and will not go away.
	LoadSpeech(ctx context.Context, files SpeechFiles) (Listener, error)
}

// SpeechFiles says where a speech model lies on this node's disk, and how it
// is listened with.
type SpeechFiles struct {
	Dir      string
	Settings domain.SpeechSettings
	Devices  []Device // the replica's own; none where it takes none
	Trusted  bool     // it comes from the operator of the platform, not from a tenant
}

// A Listener is a loaded speech model. It is safe for concurrent use.
type Listener interface {
	Info() ListenerInfo
	// Check refuses, all at once and by their names in a request's form, the
	// options that this model cannot honour. It is asked before any sound is
	// fetched.
	Check(options TranscribeOptions) error
	// Transcribe listens to 16 kHz mono samples of 16 bits, little-endian,
	// until pcm ends, and hands on what it hears, in the order of time. Its
	// memory does not grow with the length of the sound. It stops soon when ctx
	// is done or emit fails. Silence is no error: there are then no segments.
	Transcribe(ctx context.Context, pcm io.Reader, options TranscribeOptions, emit func(TranscriptEvent) error) (Transcript, error)
	Close() error
}

// ListenerInfo describes a loaded speech model.
type ListenerInfo struct {
	Slots     int      // recordings that it listens to at once
	Languages []string // codes that it knows; empty is not known
}

// A Transcription is what a replica is asked to listen to, and how.
type Transcription struct {
	Audio         AudioFile         `json:"audio"`
	Preprocessing string            `json:"preprocessing,omitempty"` // of the sound: "" or PreprocessNone, PreprocessDynamic …
	Options       TranscribeOptions `json:"options"`
}

// An AudioFile is a recording in whatever form it came, to be fetched.
type AudioFile struct {
	URL  string `json:"url"`
	Size int64  `json:"size"` // bytes
}

// What may be done to sound before it is listened to.
const (
	PreprocessNone        = "none"
	PreprocessDynamic     = "dynamic"
	PreprocessSoftDynamic = "soft_dynamic"
	PreprocessBassDynamic = "bass_dynamic"
)

// TranscribeOptions are the options that reach an engine.
type TranscribeOptions struct {
	Language    string    `json:"language,omitempty"`    // "" is detect
	Prompt      string    `json:"prompt,omitempty"`      //
	Temperature []float64 `json:"temperature,omitempty"` // to be tried one after the other; none is the engine's own
	Translate   bool      `json:"translate,omitempty"`   // into English
	VAD         string    `json:"vad,omitempty"`         // voice-activity model: "", VADSilero, VADPyannet
	Alignment   string    `json:"alignment,omitempty"`   // of words to sound: "", AlignMMS, AlignTDNN
	Words       bool      `json:"words,omitempty"`       // times of words are wanted
	Diarize     bool      `json:"diarize,omitempty"`     // tell speakers apart
	MinSpeakers int       `json:"minSpeakers,omitempty"` // of Diarize; 0 is not said
	MaxSpeakers int       `json:"maxSpeakers,omitempty"`
}

// Names of models that take part in listening; a model's settings say what its
// server calls them.
const (
	VADSilero  = "silero"
	VADPyannet = "speechx-pyannet"
	AlignMMS   = "mms_fa"
	AlignTDNN  = "tdnn_ffn"
)

// TranscriptEvent is one step of listening.
type TranscriptEvent struct {
	Seconds float64  `json:"seconds"`           // of the sound that were listened to so far
	Segment *Segment `json:"segment,omitempty"` // that was heard now, if any
}

// A Segment is what was said in one stretch. Times are in seconds from the
// start of the recording; its words lie within it, and its text is theirs.
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

// A Word of a segment.
type Word struct {
	Text        string  `json:"text"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Probability float64 `json:"probability"`
	Language    string  `json:"language,omitempty"`
	Speaker     string  `json:"speaker,omitempty"`
}

// Transcript is told at the end of a recording.
type Transcript struct {
	Language string  `json:"language"` // that was spoken
	Duration float64 `json:"duration"` // of the recording, in seconds
}

// CompressionRatio is by how much a text gets shorter when it is compressed: a
// high one is of a text that repeats itself.
func CompressionRatio(text string) float64 {
	var packed counter
	w := zlib.NewWriter(&packed)
	_, _ = io.WriteString(w, text) // a counter takes all
	_ = w.Close()
	return float64(len(text)) / float64(packed)
}

type counter int

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}
