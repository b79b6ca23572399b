package external

import (
	"cmp"
	"slices"
	"strings"

	"anneal/engines"
)

// A verbose answer is OpenAI's verbose_json, with what servers add to it.
type verbose struct {
	Language string      `json:"language"`
	Text     string      `json:"text"`
	Words    []wordTold  `json:"words"`
	Segments []sentences `json:"segments"`
}

type wordTold struct {
	Word        string  `json:"word"`
	Start       float64 `json:"start"`
	End         float64 `json:"end"`
	Probability float64 `json:"probability"`
}

type sentences struct {
	Start            float64    `json:"start"`
	End              float64    `json:"end"`
	Text             string     `json:"text"`
	Tokens           []int      `json:"tokens"`
	Temperature      float64    `json:"temperature"`
	AvgLogprob       float64    `json:"avg_logprob"`
	CompressionRatio float64    `json:"compression_ratio"`
	NoSpeechProb     float64    `json:"no_speech_prob"`
	Words            []wordTold `json:"words"`
}

// spoken is what a stretch says.
type spoken struct {
	language string
	segments []engines.Segment
}

// spoken reads an answer about so many seconds of sound.
func (v verbose) spoken(seconds float64, tokens bool, o engines.TranscriptionOptions) (said spoken, err error) {
	said.language = codeOf(v.Language)
	if len(v.Segments) == 0 && strings.TrimSpace(v.Text) != "" {
		v.Segments = []sentences{{End: seconds, Text: v.Text, Words: v.Words}}
		v.Words = nil
	}
	v.share()
	for _, told := range v.Segments {
		text := strings.TrimSpace(told.Text)
		if text == "" {
			continue
		}
		s := engines.Segment{
			Start: told.Start, End: told.End, Text: text, Tokens: told.Tokens, Temperature: told.Temperature,
			AvgLogprob: told.AvgLogprob, CompressionRatio: told.CompressionRatio, NoSpeechProb: told.NoSpeechProb,
		}
		if s.CompressionRatio == 0 {
			s.CompressionRatio = engines.CompressionRatio(text)
		}
		if tokens {
			told.Words = joined(told.Words)
		}
		for _, w := range told.Words {
			if word := strings.TrimSpace(w.Word); word != "" && o.Words {
				s.Words = append(s.Words, engines.Word{
					Text: word, Start: w.Start, End: w.End, Probability: w.Probability, Language: cmp.Or(o.Language, said.language),
				})
			}
		}
		if o.Words && len(s.Words) == 0 {
			return said, errNoWords()
		}
		said.segments = append(said.segments, s)
	}
	return said, nil
}

// share gives words that are told beside the segments, and not in them, to
// those in which their middles lie.
func (v *verbose) share() {
	if len(v.Segments) == 0 || slices.ContainsFunc(v.Segments, func(s sentences) bool { return len(s.Words) > 0 }) {
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

// joined makes words of tokens: one begins where there is a space, or where the
// script has none.
func joined(tokens []wordTold) (words []wordTold) {
	for _, t := range tokens {
		if len(words) == 0 || strings.HasPrefix(t.Word, " ") || spaceless(t.Word) {
			words = append(words, t)
			continue
		}
		w := &words[len(words)-1]
		w.Word, w.End, w.Probability = w.Word+t.Word, t.End, min(w.Probability, t.Probability)
	}
	return words
}

// spaceless tells whether a text begins in a script that puts no spaces between
// words.
func spaceless(text string) bool {
	for _, r := range text {
		return r >= 0x0E00 && r < 0x0F00 || r >= 0x1000 && r < 0x10A0 || r >= 0x1780 && r < 0x1800 || r >= 0x3040 && r < 0xA000
	}
	return false
}

// What Whisper's authors hold for a failed attempt, to be tried again with the
// next temperature.
const (
	mostRatio    = 2.4  // of compression: it repeats itself
	leastLogprob = -1.0 // on average: it guesses
	mostlySilent = 0.6  // probability of no speech, of which nothing can be said
)

func (s spoken) believable() bool {
	for _, one := range s.segments {
		if one.CompressionRatio > mostRatio || one.AvgLogprob < leastLogprob && one.NoSpeechProb <= mostlySilent {
			return false
		}
	}
	return true
}

// placeAt moves a segment to where its stretch lies, and holds its times and its
// words' in order, between those before it and the end.
func placeAt(s *engines.Segment, from, last, until float64) {
	hold := func(x, least float64) float64 { return min(max(x+from, least), until) }
	s.Start = hold(s.Start, max(last, from))
	s.End = hold(s.End, s.Start)
	at := s.Start
	for i := range s.Words {
		w := &s.Words[i]
		w.Start = min(hold(w.Start, at), s.End)
		w.End = min(hold(w.End, w.Start), s.End)
		at = w.Start
	}
}
