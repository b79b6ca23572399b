package audio

import (
	"cmp"
	"math"
	"strings"

	"anneal/api/request"
	"anneal/engines"
)

// A Transcript is the JSON response with the text of a recording.
type Transcript struct {
	Text string `json:"text"`
}

// A VerboseTranscript is a transcript with times. It has the words and the segments that the
// request asks for in timestamp_granularities; the lists may be empty.
type VerboseTranscript struct {
	Task     string               `json:"task"`
	Language string               `json:"language"`
	Duration float64              `json:"duration"` // length of the recording in seconds
	Text     string               `json:"text"`
	Words    *[]TranscriptWord    `json:"words,omitempty"`
	Segments *[]TranscriptSegment `json:"segments,omitempty"`
}

// A TranscriptWord is a word of a transcript, with its start and end time in seconds.
type TranscriptWord struct {
	Word        string  `json:"word"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Language    string  `json:"language"`
	Probability float64 `json:"probability"`
	SpeakerID   string  `json:"speaker_id,omitempty"`
}

// A TranscriptSegment is a part of a transcript, with its start and end time in seconds.
type TranscriptSegment struct {
	ID               int               `json:"id"`
	Start            float64           `json:"start"`
	End              float64           `json:"end"`
	Text             string            `json:"text"`
	Seek             int               `json:"seek"` // start of the segment, in hundredths of a second
	Tokens           []int             `json:"tokens"`
	Temperature      float64           `json:"temperature"`
	AvgLogprob       float64           `json:"avg_logprob"`
	CompressionRatio float64           `json:"compression_ratio"`
	NoSpeechProb     float64           `json:"no_speech_prob"`
	SpeakerID        string            `json:"speaker_id,omitempty"`
	Words            *[]TranscriptWord `json:"words,omitempty"`
}

// A TranscriptEvent is one event of a streamed transcript.
type TranscriptEvent struct {
	Type       string             `json:"type"`
	Delta      *string            `json:"delta,omitempty"`
	Text       *string            `json:"text,omitempty"`
	Seconds    *float64           `json:"seconds,omitempty"`
	Usage      *audioUsage        `json:"usage,omitempty"`
	Transcript *VerboseTranscript `json:"transcript,omitempty"`
}

// audioUsage is the usage of a transcription: the length of its recording.
type audioUsage struct {
	Type    string  `json:"type"`
	Seconds float64 `json:"seconds"`
}

// Values of response_format, and types of the events of a stream.
const (
	formatJSON    = "json"
	formatText    = "text"
	formatSRT     = "srt"
	formatVerbose = "verbose_json"
	formatVTT     = "vtt"

	EventDelta    = "transcript.text.delta"
	EventDone     = "transcript.text.done"
	eventProgress = "transcript.progress"
)

// TranscriptFormats lists the values of response_format.
var TranscriptFormats = []string{formatJSON, formatText, formatSRT, formatVerbose, formatVTT}

// transcriptMedia has the media types of the formats that are not JSON.
var transcriptMedia = map[string]string{formatText: "text/plain; charset=utf-8",
	formatSRT: "application/x-subrip; charset=utf-8", formatVTT: "text/vtt; charset=utf-8"}

// A transcriptBuilder builds a transcript from the segments of an engine.
type transcriptBuilder struct {
	subtitles   subtitles
	isSubtitles bool // the format is srt or vtt
	text        strings.Builder
	last        string // text of the last segment; always "" for subtitles
	segments    []engines.Segment
}

func newTranscriptBuilder(format string) *transcriptBuilder {
	b := &transcriptBuilder{subtitles: subtitles{vtt: format == formatVTT},
		isSubtitles: format == formatVTT || format == formatSRT}
	if b.isSubtitles {
		b.text.WriteString(b.subtitles.header())
	}
	return b
}

// end returns the end of the last segment, in seconds; 0 if there is none.
func (b *transcriptBuilder) end() float64 {
	if len(b.segments) == 0 {
		return 0
	}
	return b.segments[len(b.segments)-1].End
}

// add adds a segment, and returns the text that it appends to the transcript.
func (b *transcriptBuilder) add(segment engines.Segment) (appended string) {
	segment, ok := normalize(segment, b.end())
	if !ok {
		return ""
	}
	b.segments = append(b.segments, segment)
	if b.isSubtitles {
		appended = b.subtitles.add(segment)
	} else {
		appended = separator(b.last, segment.Text) + segment.Text
		b.last = segment.Text
	}
	b.text.WriteString(appended)
	return appended
}

// verbose returns the transcript in verbose_json, with the words and segments for which the request
// asks.
func (b *transcriptBuilder) verbose(q *transcriptionRequest, result engines.Transcript) *VerboseTranscript {
	v := &VerboseTranscript{Task: q.task(), Language: result.Language,
		Duration: clamp(result.Duration, b.end(), maxSeconds), Text: b.text.String()}
	words, segments := []TranscriptWord{}, []TranscriptSegment{}
	for i, segment := range b.segments {
		if !q.engine.Options.Diarize {
			segment.Speaker = ""
		}
		out := TranscriptSegment{ID: i, Start: segment.Start, End: segment.End, Text: segment.Text,
			Seek: int(math.Round(segment.Start * 100)), Tokens: append([]int{}, segment.Tokens...),
			Temperature: segment.Temperature, AvgLogprob: segment.AvgLogprob,
			CompressionRatio: segment.CompressionRatio, NoSpeechProb: segment.NoSpeechProb, SpeakerID: segment.Speaker}
		if q.words {
			own := wordsOf(segment, q, result.Language)
			words, out.Words = append(words, own...), &own
		}
		segments = append(segments, out)
	}
	if q.words {
		v.Words = &words
	}
	if q.segments {
		v.Segments = &segments
	}
	return v
}

func wordsOf(segment engines.Segment, q *transcriptionRequest, language string) []TranscriptWord {
	words := make([]TranscriptWord, len(segment.Words))
	for i, w := range segment.Words {
		words[i] = TranscriptWord{Word: strings.TrimSpace(w.Text), Start: w.Start, End: w.End,
			Language: cmp.Or(w.Language, language), Probability: w.Probability}
		if q.engine.Options.Diarize {
			words[i].SpeakerID = cmp.Or(w.Speaker, segment.Speaker)
		}
	}
	return words
}

// response returns the response in any format except verbose_json.
func (b *transcriptBuilder) response(format string) any {
	text := b.text.String()
	if format == formatJSON {
		return Transcript{text}
	}
	if format == formatText && text != "" {
		text += "\n"
	}
	return request.TextResponse{Media: transcriptMedia[format], Text: text}
}
