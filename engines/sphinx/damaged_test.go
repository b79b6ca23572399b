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
)

// TestDamagedModels loads models with changed bytes, most of which crash PocketSphinx or make it
// give up. Each is told as a reason, and the next model listens.
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
	for _, name := range []string{"en-us.lm.bin", "cmudict-en-us.dict"} { // they are large, and not changed
		require.NoError(t, os.Symlink(filepath.Join(sphinx.DebianModel, name), filepath.Join(dir, name)))
	}
	acoustic := filepath.Join(dir, "en-us")
	require.NoError(t, os.CopyFS(acoustic, os.DirFS(filepath.Join(sphinx.DebianModel, "en-us"))))
	speech := speechOf(t)
	random := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	try := func() (string, error) {
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
	want, err := try()
	require.NoError(t, err)
	require.NotEmpty(t, want)
	for _, name := range []string{"mdef", "means", "variances", "transition_matrices", "sendump", "noisedict",
		"feat.params"} {
		path := filepath.Join(acoustic, name)
		whole, err := os.ReadFile(path)
		require.NoError(t, err)
		for i := range 2 {
			if i > 0 && name != "mdef" {
				break // the first file is that which makes it crash
			}
			damaged := bytes.Clone(whole)
			for range 1 + i { // most of them in the header, where sizes are
				damaged[random.IntN(min(len(damaged), 400<<(2*(i%3))))] ^= 1 << random.IntN(8)
			}
			require.NoError(t, os.WriteFile(path, damaged, 0o600))
			began := time.Now()
			_, err := try()
			require.Less(t, time.Since(began), 2*time.Minute)
			switch {
			case err == nil:
				seen["listens"]++
			case strings.Contains(err.Error(), "signal: "):
				seen["crashes"]++
			default:
				seen["gives up"]++
			}
			if err != nil {
				require.NotContains(t, err.Error(), dir)
				require.Contains(t, []domain.Code{domain.FailedPrecondition, domain.Internal}, domain.CodeOf(err), "%v", err)
			}
		}
		require.NoError(t, os.WriteFile(path, whole, 0o600))
	}
	t.Log(seen)
	require.Positive(t, seen["crashes"], "no change made it crash: %v", seen)
	got, err := try()
	require.NoError(t, err)
	require.Equal(t, want, got, "the next model listens as before")
}

// speechOf is a recording with people's speech.
func speechOf(t *testing.T) []byte {
	path := librivox + "sense_and_sensibility_01_austen_64kb-0880.wav"
	needs(t, path, "pocketsphinx-testdata")
	return recording(t, path)
}
