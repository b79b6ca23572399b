package sound

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFFmpegCannotReadKeys replaces ffmpeg by a script, and checks that the script cannot read a
// file of this process and does not run as root.
func TestFFmpegCannotReadKeys(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	programs := t.TempDir()
	script := "#!/bin/sh\ncat " + key + " >&4 2>/dev/null\ncat <&3 >&4\nid -u >&4\n"
	require.NoError(t, os.WriteFile(filepath.Join(programs, ffmpeg), []byte(script), 0o755))
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	pcm, err := decodeFile(t, file(t, "a.mp3", []byte("sound ")), "")
	require.NoError(t, err)
	require.Contains(t, string(pcm), "sound ")
	require.NotContains(t, string(pcm), "canary")
	require.NotContains(t, string(pcm), "sound 0\n", "the script runs as root")
}
