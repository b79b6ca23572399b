package cli

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
	"anneal/internal/server"
)

// heardInDemo is what the demonstration's act of listening says, on a server of
// its own.
func heardInDemo(t *testing.T) string {
	t.Helper()
	return saidInDemo(t, (*demonstration).listen)
}

// saidInDemo is what acts of the demonstration say, on a server of their own.
func saidInDemo(t *testing.T, acts ...func(*demonstration, context.Context) error) string {
	t.Helper()
	dir := t.TempDir()
	flags := server.DefaultFlags()
	flags.Data, flags.Listen = filepath.Join(dir, "server"), "127.0.0.1:0"
	ctx, stop := context.WithCancel(t.Context())
	running, err := server.Start(ctx, flags, newErrorLogger())
	require.NoError(t, err)
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	c.SetErr(io.Discard)
	c.SetContext(ctx)
	d := &demonstration{c, &client{Context: running.Context()}, dir}
	for _, act := range acts {
		if err = act(d, ctx); err != nil {
			break
		}
	}
	stop()
	require.NoError(t, running.Wait(ctx))
	require.NoError(t, err)
	return out.String()
}

// What the demonstration promises of learning without answers to copy: on
// prompts that were held out, preferred answers become frequent and what the
// model could before is left, and the mean score rises by half of what it may.
func TestTheDemonstrationTeaches(t *testing.T) {
	if testing.Short() {
		t.Skip("it trains twice")
	}
	if err := sandbox.New(sandbox.Options{}).Check(t.Context()); err != nil {
		t.Skip(err)
	}
	said := saidInDemo(t, (*demonstration).train, (*demonstration).deploy, (*demonstration).prefer, (*demonstration).reinforce)
	numbers := func(pattern string) (found []float64) {
		match := regexp.MustCompile(pattern).FindStringSubmatch(said)
		require.NotNil(t, match, said)
		for _, text := range match[1:] {
			number, err := strconv.ParseFloat(text, 64)
			require.NoError(t, err)
			found = append(found, number)
		}
		return found
	}
	shares := numbers(`the preferred answer: base (\d+) of (\d+) held-out prompts, tuned (\d+)\. Right answers to \d+ prompts of old tasks: (\d+) before, (\d+) after`)
	require.Greater(t, shares[2]-shares[0], shares[1]/2, said)
	require.GreaterOrEqual(t, shares[4], 0.8*shares[3], said)
	means := numbers(`mean score on \d+ held-out prompts: base ([\d.]+), tuned ([\d.]+)`)
	require.GreaterOrEqual(t, means[1]-means[0], 0.5, said)
}

func TestTheDemonstrationListens(t *testing.T) {
	if err := server.SpeechInstalled(); err != nil {
		t.Skip(err)
	}
	speaker, err := speak(t.Context(), spokenSamples, filepath.Join(t.TempDir(), "speech.wav"))
	require.NoError(t, err)
	if speaker == "" {
		t.Skip("there is no recording: apt install pocketsphinx-testdata, or flite")
	}
	said := heardInDemo(t)
	require.Regexp(t, `(?m)^   2\.\d seconds of `+speaker+`, who says "go forward ten meters"$`, said)
	require.Contains(t, said, "\n   heard: go forward ten meters\n")
	require.Regexp(t, `(?m)^   words: go \d\.\d\d-\d\.\d\d s, forward \d\.\d\d-\d\.\d\d s, ten \d\.\d\d-\d\.\d\d s, meters \d\.\d\d-\d\.\d\d s$`, said)
}

func TestTheDemonstrationSaysWhatListeningTakes(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	require.Contains(t, heardInDemo(t), "\n   This act is left out, since PocketSphinx is not installed: apt-get install pocketsphinx pocketsphinx-en-us\n")
}

// Whoever speaks, the engine reads it without another program.
func TestWhoSpeaksInTheDemonstration(t *testing.T) {
	dir, samples := t.TempDir(), bytes.Repeat([]byte{1, 2}, 1000)
	recorded, file := filepath.Join(dir, "speech.raw"), filepath.Join(dir, "speech.wav")
	require.NoError(t, os.WriteFile(recorded, samples, 0o600))
	speaker, err := speak(t.Context(), recorded, file)
	require.NoError(t, err)
	require.Equal(t, "a voice of pocketsphinx-testdata", speaker)
	wav, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, samples, wav[44:])
	format := wav[8:36] // from WAVE to the bits of a sample

	missing := filepath.Join(dir, "nothing.raw")
	if _, err := exec.LookPath("flite"); err == nil {
		speaker, err = speak(t.Context(), missing, file)
		require.NoError(t, err)
		require.Equal(t, "flite's voice", speaker)
		wav, err = os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, format, wav[8:36])
	}
	t.Setenv("PATH", dir)
	speaker, err = speak(t.Context(), missing, file)
	require.NoError(t, err)
	require.Empty(t, speaker)
}
