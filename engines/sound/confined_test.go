package sound

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFFmpegReadsNoKeys runs a script in ffmpeg's place that looks for a key of the server and
// tells its user.
func TestFFmpegReadsNoKeys(t *testing.T) {
	dir := t.TempDir()
	key := filepath.Join(dir, "key")
	require.NoError(t, os.WriteFile(key, []byte("canary"), 0o600))
	programs := t.TempDir()
	script := "#!/bin/sh\ncat " + key + " >&4 2>/dev/null\ncat <&3 >&4\nid -u >&4\n"
	require.NoError(t, os.WriteFile(filepath.Join(programs, ffmpeg), []byte(script), 0o755))
	t.Setenv("PATH", programs+":"+os.Getenv("PATH"))
	pcm, err := listen(t, file(t, "a.mp3", []byte("sound ")), "")
	require.NoError(t, err)
	require.Contains(t, string(pcm), "sound ")
	require.NotContains(t, string(pcm), "canary")
	require.NotContains(t, string(pcm), "sound 0\n", "it runs as root")
}
