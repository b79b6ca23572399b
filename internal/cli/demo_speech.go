package cli

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"anneal/internal/server"
)

const (
	// spokenSamples is somebody who says what spokenText is, in 16 kHz mono
	// samples of 16 bits. Debian's pocketsphinx-testdata has it.
	spokenSamples = "/usr/share/pocketsphinx/test/data/goforward.raw"
	spokenText    = "go forward ten meters"
)

// listen transcribes a short recording, and shows when each word was said.
// Where nothing can listen, or nobody speaks, it says what to install.
func (d *demonstration) listen(ctx context.Context) error {
	model := server.SpeechAliases[0]
	d.say("\n7. Listen: a recording becomes text. %s is a deployment that sleeps until it is asked", model)
	if server.SpeechInstalled() != nil {
		d.say("   This act is left out, since PocketSphinx is not installed: apt-get install pocketsphinx pocketsphinx-en-us")
		return nil
	}
	file := filepath.Join(d.dir, "speech.wav")
	speaker, err := speak(ctx, spokenSamples, file)
	if err != nil {
		return err
	}
	if speaker == "" {
		d.say("   This act is left out, since there is no recording: apt-get install pocketsphinx-testdata, or flite")
		return nil
	}
	heard, err := d.hear(ctx, model, file)
	if err != nil {
		return err
	}
	d.say("   %.1f seconds of %s, who says %q", heard.Duration, speaker, spokenText)
	d.say("   heard: %s", heard.Text)
	var words []string
	for _, word := range heard.Words {
		words = append(words, fmt.Sprintf("%s %.2f-%.2f s", word.Word, word.Start, word.End))
	}
	d.say("   words: %s", strings.Join(words, ", "))
	return nil
}

// speak writes a recording of spokenText as a WAV file, from samples or else by
// flite, and answers whose voice it is: "" when there is none.
func speak(ctx context.Context, from, file string) (speaker string, err error) {
	samples, err := os.ReadFile(from)
	if err == nil {
		return "a voice of pocketsphinx-testdata", os.WriteFile(file, inWAV(samples), 0o600)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	flite, err := exec.LookPath("flite")
	if err != nil {
		return "", nil
	}
	if out, err := exec.CommandContext(ctx, flite, "-voice", "slt", "-t", spokenText, "-o", file).CombinedOutput(); err != nil {
		return "", fmt.Errorf("flite: %w: %s", err, bytes.TrimSpace(out))
	}
	return "flite's voice", nil
}

// inWAV are 16 kHz mono samples of 16 bits as a WAV file.
func inWAV(samples []byte) []byte {
	const rate, bytesEach, head = 16000, 2, 36
	size, le := uint32(len(samples)), binary.LittleEndian
	out := append(le.AppendUint32([]byte("RIFF"), head+size), "WAVEfmt "...)
	out = le.AppendUint32(out, 16) // what the format takes
	out = le.AppendUint16(out, 1)  // samples as they are
	out = le.AppendUint16(out, 1)  // one channel
	out = le.AppendUint32(out, rate)
	out = le.AppendUint32(out, rate*bytesEach)
	out = le.AppendUint16(out, bytesEach)
	out = le.AppendUint16(out, 8*bytesEach)
	out = le.AppendUint32(append(out, "data"...), size)
	return append(out, samples...)
}

// A demoTranscript is what was heard in a recording.
type demoTranscript struct {
	Text     string
	Duration float64
	Words    []struct {
		Word       string
		Start, End float64
	}
}

// hear asks a speech model what is said in a file.
func (d *demonstration) hear(ctx context.Context, model, file string) (heard demoTranscript, err error) {
	sound, err := os.Open(file)
	if err != nil {
		return heard, err
	}
	defer sound.Close()
	asked := map[string]string{"model": model, "response_format": "verbose_json", "timestamp_granularities": "word"}
	body, err := newForm(asked, file, sound)
	if err != nil {
		return heard, err
	}
	answer, err := d.request(ctx, http.MethodPost, "/v1/audio/transcriptions", nil, body.contentType, body)
	if err != nil {
		return heard, err
	}
	defer answer.Body.Close()
	return heard, json.NewDecoder(answer.Body).Decode(&heard)
}
