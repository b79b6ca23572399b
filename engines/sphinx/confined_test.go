package sphinx

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// keyReader fakes PocketSphinx: it responds with two words, the first of which is "key" if it can
// read a file, otherwise "hidden". The second is its user ID.
const keyReader = `key=hidden; if cat "$0" >/dev/null 2>&1; then key=key; fi
while read file from to name; do
	case $name in
	u*) echo "$name 1 0.10 0.20 $key 0.5" >&4; echo "$name 1 0.30 0.10 uid$(id -u) 0.5" >&4;;
	m*) echo " ($name -1)" >&4;;
	esac; done <&3`

// TestProgramCannotReadKeys checks that a program cannot read a file of this process, and does not
// run as root.
func TestProgramCannotReadKeys(t *testing.T) {
	key := filepath.Join(t.TempDir(), "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	l := fakeModel(t, keyReader)
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
