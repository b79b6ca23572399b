package sphinx

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// peeking answers with the word "key" where it can read a file, and with the user it runs as.
const peeking = `key=hidden; if cat "$0" >/dev/null 2>&1; then key=key; fi
while read file from to name; do
	case $name in
	u*) echo "$name 1 0.10 0.20 $key 0.5" >&4; echo "$name 1 0.30 0.10 uid$(id -u) 0.5" >&4;;
	m*) echo " ($name -1)" >&4;;
	esac; done <&3`

// TestPocketSphinxReadsNoKeys runs a program in PocketSphinx's place that looks for a key of the
// server.
func TestPocketSphinxReadsNoKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	l := scripted(t, peeking)
	l.args = append(l.args, key)
	var words []string
	loud := bytes.Repeat([]byte{0, 32}, engines.SampleRate)
	_, err := l.Transcribe(t.Context(), bytes.NewReader(loud), engines.TranscriptionOptions{},
		func(step engines.TranscriptEvent) error {
			for _, w := range step.Segment.Words {
				words = append(words, w.Text)
			}
			return nil
		})
	require.NoError(t, err)
	require.Len(t, words, 2)
	require.Equal(t, "hidden", words[0])
	require.NotEqual(t, "uid0", words[1])
}
