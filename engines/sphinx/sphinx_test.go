package sphinx

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sandbox"
)

// emptyModel returns a directory with the layout of a model and empty files.
func emptyModel(t *testing.T) string {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, acoustic), 0o700))
	for _, path := range []string{acoustic + "/mdef", acoustic + "/means", acoustic + "/feat.params", language,
		dictionary} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, path), nil, 0o600))
	}
	return dir
}

func TestInvalidModels(t *testing.T) {
	_, err := transcriber{}.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: t.TempDir(), Settings: domain.SpeechSettings{
		Languages: []string{"en", "de"}, VADModels: map[string]string{"silero": "x"},
		AlignmentModels: map[string]string{"mms_fa": "x"}, DiarizationModel: "x",
	}})
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
	for _, part := range []string{"en-us/mdef", language, dictionary, `"de"`, "vadModels", "alignmentModels",
		"diarizationModel"} {
		require.ErrorContains(t, err, part)
	}
	dir := emptyModel(t)
	real, err := New(Options{Dir: t.TempDir()})
	if err != nil {
		t.Skip(err)
	}
	_, err = real.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: dir})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "cannot load the model")
	require.NotContains(t, err.Error(), dir)
}

func TestPocketSphinxIsNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := New(Options{})
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "apt install pocketsphinx pocketsphinx-en-us")
}

func TestCheckRejectsUnsupportedOptions(t *testing.T) {
	l := &speechModel{fillers: []string{"uh", "um"}}
	for _, o := range []engines.TranscriptionOptions{
		{}, {Language: "en"}, {Temperature: []float64{0}}, {Words: true}, {Prompt: "Um, I think so"}, {Prompt: "like UH"},
		{MinSpeakers: 2},
	} {
		require.NoError(t, l.Check(o), "%+v", o)
	}
	for field, o := range map[string]engines.TranscriptionOptions{
		"language": {Language: "de"}, "task": {Translate: true}, "diarize": {Diarize: true},
		"vad_model":       {VAD: engines.VADSilero},
		"alignment_model": {Alignment: engines.AlignMMS}, "temperature": {Temperature: []float64{0, 0.2}},
		"prompt": {Prompt: "Names: Humphrey, Strum"},
	} {
		err := l.Check(o)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), field)
		require.ErrorContains(t, err, field+": ")
	}
	err := l.Check(engines.TranscriptionOptions{Language: "de", Translate: true, Temperature: []float64{0.2}})
	for _, field := range []string{"language", "task", "temperature"} {
		require.ErrorContains(t, err, field, "the error lists all fields")
	}
}

func TestKnownFillers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "d")
	require.NoError(t, os.WriteFile(path, []byte("a AH\nuh AH\number AH M B ER\num AH M\nhmm HH M\nhmm(2) HH AH M\n"),
		0o600))
	found, err := knownFillers(path)
	require.NoError(t, err)
	require.Equal(t, []string{"uh", "um", "hmm"}, found)
}

func TestWordOf(t *testing.T) {
	w, err := wordOf("0.46 0.17 go 0.997")
	require.NoError(t, err)
	require.Equal(t, engines.Word{Text: "go", Start: 0.46, End: 0.46 + 0.17 + 0.01, Probability: 0.997, Language: "en"}, w)
	for _, line := range []string{"", "0.46 0.17 go", "x 0.17 go 1", "0.46 0.17 go far 1"} {
		_, err := wordOf(line)
		require.Error(t, err, line)
	}
	words := []engines.Word{{Start: 0.1, End: 0.25}, {Start: 0.25, End: 1.02}}
	place(words, 30.01, 31)
	require.Equal(t, []engines.Word{{Start: 30.11, End: 30.26}, {Start: 30.26, End: 31}}, words)
}

func TestSegmentsEndAtPauses(t *testing.T) {
	word := func(text string, start, end float64) engines.Word {
		return engines.Word{Text: text, Start: start, End: end, Probability: 0.5}
	}
	words := []engines.Word{word("one", 0, 1), word("um", 1, 1.3), word("[noise]", 1.3, 1.4), word("two", 1.4, 2),
		word("three", 3, 4)}
	for i := range 20 {
		words = append(words, word("long", 5+float64(i), 6+float64(i)))
	}
	for fillers, want := range map[bool][]string{
		false: {"one two", "three", "long long long long long long long long long long",
			"long long long long long long long long long long"},
		true: {"one um two", "three", "long long long long long long long long long long",
			"long long long long long long long long long long"},
	} {
		var got []string
		var seconds []float64
		require.NoError(t, emitSegments(result{until: 30, words: append([]engines.Word(nil), words...)}, fillers,
			func(step engines.TranscriptEvent) error {
				got, seconds = append(got, step.Segment.Text), append(seconds, step.Seconds)
				require.InDelta(t, math.Log(0.5), step.Segment.AvgLogprob, 1e-9)
				return nil
			}))
		require.Equal(t, want, got)
		require.Equal(t, []float64{2, 4, 15, 30}, seconds)
	}
	for _, nothing := range [][]engines.Word{nil, {word("<sil>", 0, 1), word("uh", 1, 2)}} {
		events := 0
		require.NoError(t, emitSegments(result{until: 3, words: nothing}, false, func(step engines.TranscriptEvent) error {
			events++
			require.Equal(t, engines.TranscriptEvent{Seconds: 3}, step)
			return nil
		}))
		require.Equal(t, 1, events)
	}
}

func TestDitherChangesOnlySilence(t *testing.T) {
	speech := []byte{1, 2, 0, 0, 3, 4, 0, 1}
	same := bytes.Clone(speech)
	dither(same)
	require.Equal(t, speech, same, "a single zero is not silence")
	one, two := make([]byte, 2000), make([]byte, 2000)
	dither(one)
	dither(two)
	require.Equal(t, one, two)
	up := bytes.Count(one, []byte{1, 0})
	require.Greater(t, up, 300)
	require.Greater(t, bytes.Count(one, []byte{0xFF, 0xFF}), 300)
}

// fakeModel returns a model that runs a shell script instead of PocketSphinx, with requests on
// descriptor 3, responses on 4 and samples on 5.
func fakeModel(t *testing.T, script string) *speechModel {
	l := &speechModel{
		options: Options{Dir: t.TempDir(), Slots: 1}, args: []string{"sh", "-c", script},
		free: make(chan *program, 1),
	}
	l.life, l.end = context.WithCancel(t.Context())
	l.free <- nil
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// working is a script that responds to each utterance with one word.
const working = `while read file from to name; do
	case $name in
	u*) echo "$name 1 0.10 0.20 word 0.5" >&4;;
	m*) echo " ($name -1)" >&4;;
	esac; done <&3`

func TestRecognizeRetriesOnce(t *testing.T) {
	loud := bytes.Repeat([]byte{0, 32}, engines.SampleRate)
	transcribe := func(l *speechModel) (text string, err error) {
		_, err = l.Transcribe(t.Context(), bytes.NewReader(loud), engines.TranscriptionOptions{},
			func(step engines.TranscriptEvent) error {
				if step.Segment != nil {
					text += step.Segment.Text
				}
				return nil
			})
		return text, err
	}
	unconfined := func(script string) *speechModel { // so that the script can create a directory
		l := fakeModel(t, script)
		l.options.Runner = sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
		return l
	}
	first := filepath.Join(t.TempDir(), "first")
	text, err := transcribe(unconfined(
		fmt.Sprintf(`if mkdir %s; then read request <&3; echo "u1 1 0.10 0.20 half 0.5" >&4; kill -9 $$; fi; %s`, first,
			working)))
	require.NoError(t, err, "the program is restarted")
	require.Equal(t, "word", text, "words of the first attempt are dropped")
	first = filepath.Join(t.TempDir(), "first")
	text, err = transcribe(unconfined(
		fmt.Sprintf(`if mkdir %s; then read request <&3; printf "u1 1 0.10 0." >&4; kill -9 $$; fi; %s`, first,
			working)))
	require.NoError(t, err, "an incomplete line is dropped")
	require.Equal(t, "word", text)

	for script, want := range map[string]string{
		`read request <&3; echo 'ERROR: "x.c", line 1: no memory' >&2; exit 1`: `no memory`,
		`exit 0`: "failed on a part of the recording",
		`read request <&3; echo "u1 1 nothing" >&4; sleep 600`:                                   "a line with 1 fields",
		`read request <&3; yes "INFO: a long line" | head -c 200000 | tr -d '\n' >&4; sleep 600`: "token too long",
	} {
		_, err := transcribe(fakeModel(t, script))
		require.ErrorContains(t, err, want)
		require.Equal(t, domain.Internal, domain.CodeOf(err))
	}
}
