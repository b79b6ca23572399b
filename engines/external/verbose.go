package external

import (
	"cmp"
	"slices"
	"strings"

	"anneal/engines"
)

// verboseJSON is OpenAI's format verbose_json, with fields that servers add.
type verboseJSON struct {
	Language string        `json:"language"`
	Text     string        `json:"text"`
	Words    []wordJSON    `json:"words"`
	Segments []segmentJSON `json:"segments"`
}

type wordJSON struct {
	Word        string  `json:"word"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Probability float64 `json:"probability"`
}

type segmentJSON struct {
	Start            float64    `json:"start"`
	End              float64    `json:"end"`
	Text             string     `json:"text"`
	Tokens           []int      `json:"tokens"`
	Temperature      float64    `json:"temperature"`
	AvgLogprob       float64    `json:"avg_logprob"`
	CompressionRatio float64    `json:"compression_ratio"`
	NoSpeechProb     float64    `json:"no_speech_prob"`
	Words            []wordJSON `json:"words"`
}

// A transcript is the transcript of a chunk.
type transcript struct {
	language string
	segments []engines.Segment
}

// transcript converts the response for a chunk with a duration in seconds. tokens reports that the
// words of the response are tokens.
func (v verboseJSON) transcript(
	seconds float64, tokens bool, o engines.TranscriptionOptions,
) (t transcript, err error) {
	t.language = languageCode(v.Language)
	if len(v.Segments) == 0 && strings.TrimSpace(v.Text) != "" {
		v.Segments = []segmentJSON{{End: seconds, Text: v.Text, Words: v.Words}}
		v.Words = nil
	}
	v.assignWords()
	for _, in := range v.Segments {
		text := strings.TrimSpace(in.Text)
		if text == "" {
			continue
		}
		s := engines.Segment{
			Start: in.Start, End: in.End, Text: text, Tokens: in.Tokens, Temperature: in.Temperature,
			AvgLogprob: in.AvgLogprob, CompressionRatio: in.CompressionRatio, NoSpeechProb: in.NoSpeechProb,
		}
		if s.CompressionRatio == 0 {
			s.CompressionRatio = engines.CompressionRatio(text)
		}
		if tokens {
			in.Words = joinTokens(in.Words)
		}
		for _, w := range in.Words {
			if word := strings.TrimSpace(w.Word); word != "" && o.Words {
				s.Words = append(s.Words, engines.Word{
					Text: word, Start: w.Start, End: w.End, Probability: w.Probability, Language: cmp.Or(o.Language, t.language),
				})
			}
		}
		if o.Words && len(s.Words) == 0 {
			return t, errNoWords()
		}
		t.segments = append(t.segments, s)
	}
	return t, nil
}

// assignWords assigns words to the segments that contain their midpoints, if the response lists
// words separately from segments.
func (v *verboseJSON) assignWords() {
	if len(v.Segments) == 0 || slices.ContainsFunc(v.Segments, func(s segmentJSON) bool { return len(s.Words) > 0 }) {
		return
	}
	at := 0
	for _, w := range v.Words {
		for at < len(v.Segments)-1 && (w.Start+w.End)/2 >= v.Segments[at+1].Start {
			at++
		}
		v.Segments[at].Words = append(v.Segments[at].Words, w)
	}
}

// joinTokens combines tokens to words: a word begins at a space, or at each token of a script
// without spaces.
func joinTokens(tokens []wordJSON) (words []wordJSON) {
	for _, t := range tokens {
		if len(words) == 0 || strings.HasPrefix(t.Word, " ") || isSpaceless(t.Word) {
			words = append(words, t)
			continue
		}
		w := &words[len(words)-1]
		w.Word, w.End, w.Probability = w.Word+t.Word, t.End, min(w.Probability, t.Probability)
	}
	return words
}

// isSpaceless reports whether a text begins in a script without spaces between words.
func isSpaceless(text string) bool {
	for _, r := range text {
		return r >= 0x0E00 && r < 0x0F00 || r >= 0x1000 && r < 0x10A0 || r >= 0x1780 && r < 0x1800 || r >= 0x3040 &&
			r < 0xA000
	}
	return false
}

// Whisper's thresholds above or below which a transcription has failed, and is repeated with the
// next temperature.
const (
	maxCompressionRatio = 2.4
	minAvgLogprob       = -1.0
	noSpeechThreshold   = 0.6
)

func (t transcript) acceptable() bool {
	for _, s := range t.segments {
		if s.CompressionRatio > maxCompressionRatio ||
			s.AvgLogprob < minAvgLogprob && s.NoSpeechProb <= noSpeechThreshold {
			return false
		}
	}
	return true
}

// placeAt converts the times of a segment, which count from the start of its chunk, to times in the
// recording. start and end are the times of the chunk, and last is the start of the previous
// segment. placeAt moves times into the range from last to end, and orders the words.
func placeAt(s *engines.Segment, start, last, end float64) {
	clamp := func(x, lower float64) float64 { return min(max(x+start, lower), end) }
	s.Start = clamp(s.Start, max(last, start))
	s.End = clamp(s.End, s.Start)
	at := s.Start
	for i := range s.Words {
		w := &s.Words[i]
		w.Start = min(clamp(w.Start, at), s.End)
		w.End = min(clamp(w.End, w.Start), s.End)
		at = w.Start
	}
}
