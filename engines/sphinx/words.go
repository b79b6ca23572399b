package sphinx

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"anneal/engines"
)

const (
	frameSeconds   = 0.01
	segmentPause   = 0.5  // pause between words that ends a segment, in seconds
	segmentSeconds = 10.0 // maximum duration of a segment with several words, in seconds
)

// wordOf parses the fields of a line in NIST's format CTM after the name and the channel: the
// start, the duration up to the last frame, the word and the confidence.
func wordOf(line string) (w engines.Word, err error) {
	fields := strings.Fields(line)
	if len(fields) != 4 {
		return w, fmt.Errorf("PocketSphinx wrote a line with %d fields after the channel, not 4", len(fields))
	}
	var numbers [3]float64
	for i, text := range []string{fields[0], fields[1], fields[3]} {
		if numbers[i], err = strconv.ParseFloat(text, 64); err != nil {
			return w, fmt.Errorf("PocketSphinx wrote %q instead of a number", text)
		}
	}
	return engines.Word{
		Text: strings.ToLower(fields[2]), Start: numbers[0], End: numbers[0] + numbers[1] + frameSeconds,
		Probability: min(1, max(0, numbers[2])), Language: english,
	}, nil
}

// place converts the times of the words of a chunk to times in the recording. start and end are the
// times of the chunk.
func place(words []engines.Word, start, end float64) {
	for i := range words {
		words[i].Start = min(round(words[i].Start+start), end)
		words[i].End = min(round(words[i].End+start), end)
	}
}

func round(seconds float64) float64 { return math.Round(seconds*1000) / 1000 }

// emitSegments emits the segments of a chunk. If it has none, emitSegments emits only the progress.
func emitSegments(r result, fillers bool, emit func(engines.TranscriptEvent) error) error {
	words := slices.DeleteFunc(r.words, func(w engines.Word) bool { return isNoise(w.Text, fillers) })
	if len(words) == 0 {
		return emit(engines.TranscriptEvent{Seconds: r.until})
	}
	for len(words) > 0 {
		n := 1
		for n < len(words) && words[n].Start-words[n-1].End < segmentPause &&
			words[n].End-words[0].Start <= segmentSeconds {
			n++
		}
		segment := words[:n:n]
		words = words[n:]
		seconds := segment[n-1].End
		if len(words) == 0 {
			seconds = r.until
		}
		if err := emit(engines.TranscriptEvent{Seconds: seconds, Segment: segmentOf(segment)}); err != nil {
			return err
		}
	}
	return nil
}

// isNoise reports whether a text of the model is not a word: a marker of noise, or a filler unless
// fillers are requested.
func isNoise(text string, fillers bool) bool {
	return strings.HasPrefix(text, "<") || strings.HasPrefix(text, "[") || strings.HasPrefix(text, "++") ||
		!fillers && slices.Contains(allFillers, text)
}

func segmentOf(words []engines.Word) *engines.Segment {
	text := make([]string, len(words))
	sum := 0.0
	for i, w := range words {
		text[i] = w.Text
		sum += math.Log(max(w.Probability, minProbability))
	}
	s := &engines.Segment{
		Start: words[0].Start, End: words[len(words)-1].End, Text: strings.Join(text, " "), Words: words,
		AvgLogprob: sum / float64(len(words)),
	}
	s.CompressionRatio = engines.CompressionRatio(s.Text)
	return s
}

// minProbability replaces the probability 0, whose logarithm is infinite. It is half of the lowest
// other probability that PocketSphinx prints.
const minProbability = 0.0005

// dither adds noise of one bit to digital silence, because the model takes the logarithm of the
// energy. It is deterministic.
func dither(pcm []byte) {
	state := uint32(1)
	before := false
	for i := 0; i+1 < len(pcm); i += 2 {
		nothing := pcm[i]|pcm[i+1] == 0
		if nothing && before {
			state = state*1664525 + 1013904223
			one := byte(int32(state) >> 31) // 0 or 0xFF
			pcm[i], pcm[i+1] = one|1, one
		}
		before = nothing
	}
}
