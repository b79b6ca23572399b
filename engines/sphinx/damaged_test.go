package sphinx_test

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sandbox"
	"anneal/engines/sphinx"
	"anneal/internal/testutil"
)

// TestDamagedModels loads models with changed bytes; at least one of the models makes PocketSphinx
// crash. It checks that each load ends in time, that errors do not contain the model's directory,
// and that the undamaged model then works.
func TestDamagedModels(t *testing.T) {
	transcriber, err := sphinx.New(sphinx.Options{Dir: t.TempDir(), Slots: 1})
	if err != nil {
		t.Skip(err)
	}
	if _, err := os.Stat(sphinx.DebianModel); err != nil {
		t.Skip("pocketsphinx-en-us is not installed: apt install pocketsphinx-en-us")
	}
	if err := (*sandbox.Runner)(nil).Check(t.Context()); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"en-us.lm.bin", "cmudict-en-us.dict"} { // large files that the test does not change
		require.NoError(t, os.Symlink(filepath.Join(sphinx.DebianModel, name), filepath.Join(dir, name)))
	}
	acoustic := filepath.Join(dir, "en-us")
	require.NoError(t, os.CopyFS(acoustic, os.DirFS(filepath.Join(sphinx.DebianModel, "en-us"))))
	speech := speechSamples(t)
	random := rand.New(rand.NewPCG(1, 2))
	outcomes := map[string]int{}
	loadAndTranscribe := func() (string, error) {
		l, err := transcriber.LoadSpeech(t.Context(), engines.SpeechFiles{Dir: dir,
			Settings: domain.SpeechSettings{Format: domain.SpeechPocketsphinx}})
		if err != nil {
			return "", err
		}
		defer l.Close()
		text := ""
		_, err = l.Transcribe(t.Context(), bytes.NewReader(speech), engines.TranscriptionOptions{},
			func(step engines.TranscriptEvent) error {
				if step.Segment != nil {
					text += step.Segment.Text + " "
				}
				return nil
			})
		return text, err
	}
	want, err := loadAndTranscribe()
	require.NoError(t, err)
	require.NotEmpty(t, want)
	for _, name := range []string{"mdef", "means", "variances", "transition_matrices", "sendump", "noisedict",
		"feat.params"} {
		path := filepath.Join(acoustic, name)
		original := testutil.ReadFile(t, path)
		for i := range 2 {
			if i > 0 && name != "mdef" {
				break // only damage to mdef makes PocketSphinx crash
			}
			damaged := bytes.Clone(original)
			for range 1 + i { // mostly in the header, which contains sizes
				damaged[random.IntN(min(len(damaged), 400<<(2*(i%3))))] ^= 1 << random.IntN(8)
			}
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			began := time.Now()
			_, err := loadAndTranscribe()
			require.Less(t, time.Since(began), 2*time.Minute)
			switch {
			case err == nil:
				outcomes["works"]++
			case strings.Contains(err.Error(), "signal: "):
				outcomes["crashes"]++
			default:
				outcomes["exits"]++
			}
			if err != nil {
				require.NotContains(t, err.Error(), dir)
				require.Contains(t, []domain.Code{domain.FailedPrecondition, domain.Internal}, domain.CodeOf(err), "%v", err)
			}
		}
		require.NoError(t, os.WriteFile(path, original, 0o600))
	}
	t.Log(outcomes)
	require.Positive(t, outcomes["crashes"], "no change made PocketSphinx crash: %v", outcomes)
	got, err := loadAndTranscribe()
	require.NoError(t, err)
	require.Equal(t, want, got, "the undamaged model has the same transcript")
}

// speechSamples returns the samples of a recording of speech.
func speechSamples(t *testing.T) []byte {
	path := librivox + "sense_and_sensibility_01_austen_64kb-0880.wav"
	skipWithout(t, path, "pocketsphinx-testdata")
	return recording(t, path)
}
