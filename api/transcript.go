package api

import (
	"cmp"
	"math"
	"strings"

	"anneal/api/request"
	"anneal/engines"
)

// A Transcript is what was said, and nothing else.
type Transcript struct {
	Text string `json:"text"`
}

// A VerboseTranscript is what was said, and when. Its words and segments are
// there, if only as empty lists, when they were asked for.
type VerboseTranscript struct {
	Task     string               `json:"task"`
	Language string               `json:"language"`
	Duration float64              `json:"duration"` // seconds
	Text     string               `json:"text"`
	Words    *[]TranscriptWord    `json:"words,omitempty"`
	Segments *[]TranscriptSegment `json:"segments,omitempty"`
}

// A TranscriptWord is a word, and when it was said.
type TranscriptWord struct {
	Word        string  `json:"word"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Language    string  `json:"language"`
	Probability float64 `json:"probability"`
	SpeakerID   string  `json:"speaker_id,omitempty"`
}

// A TranscriptSegment is what was said in one stretch.
type TranscriptSegment struct {
	ID               int               `json:"id"`
	Start            float64           `json:"start"`
	End              float64           `json:"end"`
	Text             string            `json:"text"`
	Seek             int               `json:"seek"` // hundredths of a second
	Tokens           []int             `json:"tokens"`
	Temperature      float64           `json:"temperature"`
	AvgLogprob       float64           `json:"avg_logprob"`
	CompressionRatio float64           `json:"compression_ratio"`
	NoSpeechProb     float64           `json:"no_speech_prob"`
	SpeakerID        string            `json:"speaker_id,omitempty"`
	Words            *[]TranscriptWord `json:"words,omitempty"`
}

// A TranscriptEvent is one part of a streamed transcript.
type TranscriptEvent struct {
	Type       string             `json:"type"`
	Delta      *string            `json:"delta,omitempty"`
	Text       *string            `json:"text,omitempty"`
	Seconds    *float64           `json:"seconds,omitempty"`
	Usage      *audioUsage        `json:"usage,omitempty"`
	Transcript *VerboseTranscript `json:"transcript,omitempty"`
}

// audioUsage counts what was listened to.
type audioUsage struct {
	Type    string  `json:"type"`
	Seconds float64 `json:"seconds"`
}

// Formats of transcripts, and the types of their events.
const (
	formatJSON    = "json"
	formatText    = "text"
	formatSRT     = "srt"
	formatVerbose = "verbose_json"
	formatVTT     = "vtt"

	eventDelta    = "transcript.text.delta"
	eventDone     = "transcript.text.done"
	eventProgress = "transcript.progress"
)

var transcriptFormats = []string{formatJSON, formatText, formatSRT, formatVerbose, formatVTT}

// transcriptMedia are what formats that are not JSON are answered as.
var transcriptMedia = map[string]string{formatText: "text/plain; charset=utf-8", formatSRT: "application/x-subrip; charset=utf-8", formatVTT: "text/vtt; charset=utf-8"}

// A script grows with each segment that is heard.
type script struct {
	shape    subtitles
	timed    bool // it is subtitles
	text     strings.Builder
	last     string // piece of the text
	segments []engines.Segment
}

func newScript(format string) *script {
	s := &script{shape: subtitles{vtt: format == formatVTT}, timed: format == formatVTT || format == formatSRT}
	if s.timed {
		s.text.WriteString(s.shape.opening())
	}
	return s
}

// end is how far the script has got.
func (s *script) end() float64 {
	if len(s.segments) == 0 {
		return 0
	}
	return s.segments[len(s.segments)-1].End
}

// add takes in a segment, and answers what it adds to the text.
func (s *script) add(segment engines.Segment) (more string) {
	segment, ok := tidy(segment, s.end())
	if !ok {
		return ""
	}
	s.segments = append(s.segments, segment)
	if s.timed {
		more = s.shape.of(segment)
	} else {
		more = gap(s.last, segment.Text) + segment.Text
		s.last = segment.Text
	}
	s.text.WriteString(more)
	return more
}

// verbose is the transcript with its words and segments, as they are asked for.
func (s *script) verbose(q *transcriptionRequest, heard engines.Transcript) *VerboseTranscript {
	v := &VerboseTranscript{Task: q.task(), Language: heard.Language, Duration: clamp(heard.Duration, s.end(), mostSeconds), Text: s.text.String()}
	words, segments := []TranscriptWord{}, []TranscriptSegment{}
	for i, one := range s.segments {
		if !q.asked.Options.Diarize {
			one.Speaker = ""
		}
		shown := TranscriptSegment{ID: i, Start: one.Start, End: one.End, Text: one.Text, Seek: int(math.Round(one.Start * 100)), Tokens: append([]int{}, one.Tokens...),
			Temperature: one.Temperature, AvgLogprob: one.AvgLogprob, CompressionRatio: one.CompressionRatio, NoSpeechProb: one.NoSpeechProb, SpeakerID: one.Speaker}
		if q.words {
			said := wordsOf(one, q, heard.Language)
			words, shown.Words = append(words, said...), &said
		}
		segments = append(segments, shown)
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
	said := make([]TranscriptWord, len(segment.Words))
	for i, w := range segment.Words {
		said[i] = TranscriptWord{Word: strings.TrimSpace(w.Text), Start: w.Start, End: w.End, Language: cmp.Or(w.Language, language), Probability: w.Probability}
		if q.asked.Options.Diarize {
			said[i].SpeakerID = cmp.Or(w.Speaker, segment.Speaker)
		}
	}
	return said
}

// whole is the transcript in a format that is not verbose: a text, or an object.
func (s *script) whole(format string) any {
	text := s.text.String()
	if format == formatJSON {
		return Transcript{text}
	}
	if format == formatText && text != "" {
		text += "\n"
	}
	return request.TextResponse{Media: transcriptMedia[format], Text: text}
}
