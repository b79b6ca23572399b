package main_test

import (
	"bytes"
	little "encoding/binary"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// spokenSamples is a file with 16 kHz mono samples of a voice that says "go forward ten meters". It
// is part of Debian's pocketsphinx-testdata.
const spokenSamples = "/usr/share/pocketsphinx/test/data/goforward.raw"

// missingForSpeech returns a package that the speech tests need and this machine lacks, and how to
// install it; "" if none is missing.
func missingForSpeech() string {
	for file, pack := range map[string]string{"/usr/share/pocketsphinx/model/en-us/en-us.lm.bin": "pocketsphinx-en-us",
		spokenSamples: "pocketsphinx-testdata"} {
		if _, err := os.Stat(file); err != nil {
			return pack + " is not installed: apt install " + pack
		}
	}
	for _, program := range []string{"pocketsphinx", "pocketsphinx_continuous"} {
		if _, err := exec.LookPath(program); err == nil {
			return ""
		}
	}
	return "pocketsphinx is not installed: apt install pocketsphinx"
}

// speech returns a recording as a WAV file, in a separate directory.
func speech(t *testing.T) string {
	t.Helper()
	if lacks := missingForSpeech(); lacks != "" {
		t.Skip(lacks)
	}
	samples := testutil.ReadFile(t, spokenSamples)
	file := filepath.Join(t.TempDir(), "speech.wav")
	require.NoError(t, os.WriteFile(file, wave(samples), 0o600))
	return file
}

// wave returns 16 kHz mono samples of 16 bits as a WAV file.
func wave(samples []byte) []byte {
	var out bytes.Buffer
	put := func(values ...any) {
		for _, value := range values {
			if text, ok := value.(string); ok {
				value = []byte(text)
			}
			_ = little.Write(&out, little.LittleEndian, value) // writes to memory do not fail
		}
	}
	put("RIFF", uint32(36+len(samples)), "WAVE", "fmt ", uint32(16), uint16(1), uint16(1), uint32(16000), uint32(32000),
		uint16(2), uint16(16), "data", uint32(len(samples)), samples)
	return out.Bytes()
}

const spokenText = "go forward ten meters"

// TestUnmodifiedClientsTranscribe checks that clients that were written for another service
// transcribe in every format, with both granularities, and as a stream.
func TestUnmodifiedClientsTranscribe(t *testing.T) {
	t.Parallel()
	file := speech(t)
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	s.withoutPrism = true // prism garbles recordings: see api.TestPrismGarblesBinaryForms
	check := func(t *testing.T, output object) {
		t.Helper()
		require.Equal(t, spokenText, output["json"])
		require.Equal(t, spokenText+"\n", output["text"])
		require.Regexp(t, `(?s)^1\n00:00:\d\d,\d{3} --> 00:00:\d\d,\d{3}\n`+spokenText+`\n\n$`, output["srt"])
		require.Regexp(t, `(?s)^WEBVTT\n\n00:00:\d\d\.\d{3} --> 00:00:\d\d\.\d{3}\n`+spokenText+`\n\n$`, output["vtt"])
		for _, way := range []string{"word", "segment", "both"} {
			require.Equal(t, spokenText, at(output, way+".text"))
			require.Equal(t, "en", at(output, way+".language"))
			require.Greater(t, at(output, way+".duration"), 2.0)
			require.Equal(t, way != "segment", at(output, way+".words") == 4.0, "%v", output[way])
			require.Equal(t, way != "word", at(output, way+".segments") == 1.0, "%v", output[way])
		}
		require.Equal(t, spokenText, at(output, "stream.deltas"))
		require.Equal(t, spokenText, at(output, "stream.text"))
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Equal(t, "temperature", at(output, "refusal.param"))
	}
	t.Run("openai for Go", func(t *testing.T) {
		program := goClient(t, "./transcribe")
		check(t, s.driveModel(t, "speech-v3", ".", program, file))
	})
	t.Run("openai for JavaScript", func(t *testing.T) {
		output := s.driveModel(t, "speech-v3", nodeClientsDir(t), "node", "transcribe.mjs", file)
		check(t, output)
		require.Equal(t, "BadRequestError", at(output, "refusal.kind"))
		require.Greater(t, at(output, "stream.listened"), 2.0)
	})
	t.Run("curl", func(t *testing.T) {
		curl, err := exec.LookPath("curl")
		if err != nil {
			t.Skip("curl is not installed: apt install curl")
		}
		out, err := exec.Command(curl, "-sf", "-H", "Authorization: "+s.context.APIKey,
			s.context.Address+"/v1/audio/transcriptions", "-F", "file=@"+file, "-F", "model=speech-v3-turbo", "-F",
			"response_format=text").Output()
		require.NoError(t, err)
		require.Equal(t, spokenText, strings.TrimSpace(string(out)))
	})
}
