package audio

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

func TestJoinWords(t *testing.T) {
	for _, c := range []struct {
		words []string
		want  string
	}{
		{[]string{"go", "forward"}, "go forward"},
		{[]string{" go", " forward", "."}, "go forward."},
		{[]string{" don", "'t", " go"}, "don't go"},
		{[]string{"你", "好", "。", "世界"}, "你好。世界"},
		{[]string{"สวัสดี", "ครับ"}, "สวัสดีครับ"},
		{[]string{"안녕", "하세요"}, "안녕 하세요"},
		{[]string{"iPhone", "手机"}, "iPhone 手机"},
		{[]string{"a\nb", "\t", "c"}, "a b c"},
		{nil, ""},
	} {
		var words []engines.Word
		for _, w := range c.words {
			words = append(words, engines.Word{Text: w})
		}
		require.Equal(t, c.want, joinWords(words))
	}
}

// alphabets are the characters that randomSpeech uses.
var alphabets = [][]rune{[]rune("abcdefghij"), []rune("äöüéñ"), []rune("你好世界语音"), []rune("สวัสดีครับ"),
	[]rune("&<>-!?."), []rune("한국어")}

// randomSpeech returns segments as a faulty engine might report them: with times out of order,
// words outside of their segments, and empty words.
func randomSpeech(r *rand.Rand) (all []engines.Segment) {
	at := 0.0
	for range r.IntN(12) {
		s := engines.Segment{Start: at + r.Float64()*3 - 1}
		letters := alphabets[r.IntN(len(alphabets))]
		space := []string{"", " "}[r.IntN(2)]
		for range r.IntN(40) {
			text := space
			for range r.IntN(12) * (1 + 9*r.IntN(2)*r.IntN(2)) {
				text += string(letters[r.IntN(len(letters))])
			}
			start := at + r.Float64() - 0.3
			at += r.Float64()
			s.Words = append(s.Words,
				engines.Word{Text: text, Start: start, End: at + r.Float64() - 0.5, Probability: r.Float64()})
		}
		if s.End = at; r.IntN(3) > 0 {
			s.Text = joinWords(s.Words)
		}
		if r.IntN(4) == 0 {
			s.Words = nil
		}
		all = append(all, s)
	}
	return all
}

// TestTranscriptsAreOrdered checks that, for any segments of an engine, words are within their
// segments, times ascend, the text of the transcript consists of the texts of the segments, and the
// text of each segment consists of the texts of its words.
func TestTranscriptsAreOrdered(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		b, deltas := newTranscriptBuilder(formatVerbose), ""
		for _, segment := range randomSpeech(r) {
			deltas += b.add(segment)
		}
		q := &transcriptionRequest{words: true, segments: true}
		v := b.verbose(q, engines.Transcript{Language: "en", Duration: 3})
		require.Equal(t, v.Text, deltas)
		require.NotNil(t, v.Words)
		last, text, words := 0.0, "", 0
		for i, one := range *v.Segments {
			require.Equal(t, i, one.ID)
			require.LessOrEqual(t, last, one.Start)
			require.LessOrEqual(t, one.Start, one.End)
			require.NotEmpty(t, one.Text)
			text += separator(text, one.Text) + one.Text
			within := one.Start
			for _, w := range *one.Words {
				require.Equal(t, w, (*v.Words)[words])
				require.LessOrEqual(t, within, w.Start)
				require.LessOrEqual(t, w.Start, w.End)
				require.LessOrEqual(t, w.End, one.End)
				require.NotEmpty(t, w.Word)
				within = w.End
				words++
			}
			if len(*one.Words) > 0 {
				require.Equal(t, one.Text, joinWords(b.segments[i].Words))
			}
			last = one.End
		}
		require.Len(t, *v.Words, words)
		require.Equal(t, v.Text, text)
		require.LessOrEqual(t, last, v.Duration)
	}
}

var cuePattern = regexp.MustCompile(`^(\d+):(\d\d):(\d\d)[.,](\d{3}) --> (\d+):(\d\d):(\d\d)[.,](\d{3})$`)

// readCues parses a file of subtitles, checks that the cues are in order and within the limits of a
// cue, and returns the text of the cues.
func readCues(t *testing.T, file string, vtt bool) (text string) {
	t.Helper()
	if vtt {
		var ok bool
		file, ok = strings.CutPrefix(file, "WEBVTT\n\n")
		require.True(t, ok, "%q", file)
	}
	if file == "" {
		return ""
	}
	require.True(t, strings.HasSuffix(file, "\n\n"), "%q", file)
	last := time.Duration(0)
	for i, block := range strings.Split(strings.TrimSuffix(file, "\n\n"), "\n\n") {
		lines := strings.Split(block, "\n")
		if !vtt {
			require.Equal(t, fmt.Sprint(i+1), lines[0])
			lines = lines[1:]
		}
		times := cuePattern.FindStringSubmatch(lines[0])
		require.NotNil(t, times, "%q", block)
		at := func(n int) time.Duration {
			d, err := time.ParseDuration(fmt.Sprintf("%sh%sm%ss%sms", times[n], times[n+1], times[n+2], times[n+3]))
			require.NoError(t, err)
			return d
		}
		require.LessOrEqual(t, last, at(1))
		require.Less(t, at(1), at(5), "%q", block)
		last = at(5)
		require.LessOrEqual(t, len(lines), 1+maxCueLines, "%q", block)
		require.Greater(t, len(lines), 1, "%q", block)
		for _, line := range lines[1:] {
			require.NotContains(t, line, "-->")
			if vtt {
				require.NotContains(t, line, "<")
				line = strings.NewReplacer("&lt;", "<", "&gt;", ">", "&amp;", "&").Replace(line)
			}
			require.LessOrEqual(t, cells(line), maxLineWidth, "%q", line)
			require.NotEmpty(t, strings.TrimSpace(line))
			text += line
		}
	}
	return text
}

func TestSubtitlesAreValid(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: 300 transcripts on one core")
	}
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 2))
		speech := randomSpeech(r)
		for _, format := range []string{formatSRT, formatVTT} {
			b, plain := newTranscriptBuilder(format), newTranscriptBuilder(formatText)
			for _, segment := range speech {
				b.add(segment)
				plain.add(segment)
			}
			want := plain.text.String()
			if format == formatSRT {
				want = strings.ReplaceAll(want, "-->", "→")
			}
			got := readCues(t, b.text.String(), format == formatVTT)
			strip := func(text string) string { // a line break can split an arrow
				return strings.NewReplacer("→", "", "-", "", ">", "").Replace(strings.Join(strings.Fields(text), ""))
			}
			require.Equal(t, strip(want), strip(got), "seed %d", seed)
		}
	}
}

// TestLongSegmentsBecomeSeveralCues checks that a segment without times of words is split into cues
// by the width of its text.
func TestLongSegmentsBecomeSeveralCues(t *testing.T) {
	b := newTranscriptBuilder(formatSRT)
	b.add(engines.Segment{Start: 1, End: 13, Text: strings.TrimSpace(strings.Repeat("word ", 40))})
	b.add(engines.Segment{Start: 5, End: 6, Text: strings.Repeat("x", 100)})
	require.Equal(t, `1
00:00:01,000 --> 00:00:05,800
word word word word word word word word
word word word word word word word word

2
00:00:05,800 --> 00:00:10,600
word word word word word word word word
word word word word word word word word

3
00:00:10,600 --> 00:00:13,000
word word word word word word word word

4
00:00:13,000 --> 00:00:13,001
`+strings.Repeat("x", 42)+"\n"+strings.Repeat("x", 42)+`

5
00:00:13,001 --> 00:00:13,002
`+strings.Repeat("x", 16)+"\n\n", b.text.String())
}

// TestTrimBefore checks that trimBefore returns the part of a segment that the first attempt has
// not sent, even when the second attempt splits the recording into other segments.
func TestTrimBefore(t *testing.T) {
	word := func(text string, start float64) engines.Word {
		return engines.Word{Text: text, Start: start, End: start + 1}
	}
	all := engines.Segment{Start: 0, End: 3, Text: "a b c",
		Words: []engines.Word{word("a", 0), word("b", 1), word("c", 2)}}
	for sent, want := range map[float64]string{0: "a b c", 1: "b c", 1.2: "b c", 1.8: "c", 2.9: "", 3: ""} {
		rest, ok := trimBefore(all, sent)
		require.Equal(t, want != "", ok, "%v", sent)
		if ok {
			require.Equal(t, want, rest.Text, "%v", sent)
			require.GreaterOrEqual(t, rest.Start, sent)
		}
	}
	all.Words = nil
	_, ok := trimBefore(all, 1)
	require.True(t, ok, "its middle has not been sent")
	_, ok = trimBefore(all, 2)
	require.False(t, ok)
}
