package cli

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// TestPublishOverwritesNothing checks that when two programs publish to one target at the same
// time, one fails, and the target has the content of the other.
func TestPublishOverwritesNothing(t *testing.T) {
	c, dir := &cobra.Command{Use: "test"}, t.TempDir()
	for round := range 100 {
		target := filepath.Join(dir, "target-"+strconv.Itoa(round))
		var programs sync.WaitGroup
		var won atomic.Int32
		winner, start := make(chan string, 8), make(chan struct{})
		for i := range 8 {
			part := filepath.Join(dir, fmt.Sprintf("part-%d-%d", round, i))
			if round%2 == 0 {
				require.NoError(t, os.WriteFile(part, []byte(part), 0o600))
			} else {
				require.NoError(t, os.Mkdir(part, 0o700))
				require.NoError(t, os.WriteFile(filepath.Join(part, "name"), []byte(part), 0o600))
			}
			programs.Go(func() {
				<-start
				if publish(&cobra.Command{Use: "test"}, part, target) == nil {
					won.Add(1)
					winner <- part
				}
			})
		}
		close(start)
		programs.Wait()
		require.EqualValues(t, 1, won.Load())
		if round%2 == 1 {
			target = filepath.Join(target, "name")
		}
		content, err := os.ReadFile(target)
		require.NoError(t, err)
		require.Equal(t, <-winner, string(content))
	}
	link, part := filepath.Join(dir, "link"), filepath.Join(dir, "part")
	require.NoError(t, os.Symlink(filepath.Join(dir, "nowhere"), link))
	require.NoError(t, os.WriteFile(part, nil, 0o600))
	err := publish(c, part, link)
	require.ErrorContains(t, err, "already exists")
	require.Contains(t, hintOf(err), "nothing is overwritten")
	require.FileExists(t, part)
}

// TestDownloadOverwritesNothing checks that a download into a directory with files of the same names
// fails before it downloads anything, unless --overwrite is given, and leaves no other files.
func TestDownloadOverwritesNothing(t *testing.T) {
	downloads := 0
	server := func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/accounts/a/datasets/d:getDownloadEndpoint" {
			fmt.Fprintf(w, `{"filenameToSignedUrls": {"a.jsonl": "http://%[1]s/a", "b.jsonl": "http://%[1]s/b"}}`, r.Host)
			return
		}
		downloads++
		fmt.Fprint(w, "new")
	}
	dir := filepath.Join(t.TempDir(), "rows")
	require.NoError(t, os.Mkdir(dir, 0o700))
	mine := filepath.Join(dir, "b.jsonl")
	require.NoError(t, os.WriteFile(mine, []byte("mine"), 0o600))
	require.NoError(t, os.WriteFile(mine+".part", []byte("mine too"), 0o600))

	_, err := runAgainst(t, server, "dataset", "download", "d", "--dir", dir)
	require.ErrorContains(t, err, mine+" already exists")
	require.Contains(t, hintOf(err), "--overwrite")
	require.Zero(t, downloads)
	_, err = runAgainst(t, server, "dataset", "download", "d", "--dir", dir, "--overwrite")
	require.NoError(t, err)
	for name, want := range map[string]string{"a.jsonl": "new", "b.jsonl": "new", "b.jsonl.part": "mine too"} {
		content, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Equal(t, want, string(content), name)
	}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 3)
}

// TestSecretsOverwriteNoFile checks that credentials are not created when their file exists.
func TestSecretsOverwriteNoFile(t *testing.T) {
	created := 0
	server := func(w http.ResponseWriter, _ *http.Request) {
		if created++; created > 1 {
			w.WriteHeader(http.StatusBadRequest)
		}
		fmt.Fprint(w, `{"name": "accounts/a/apiKeys/k", "key": "secret"}`)
	}
	file := filepath.Join(t.TempDir(), "reader.json")
	_, err := runAgainst(t, server, "events", "credentials", "create", "k", "--file", file)
	require.NoError(t, err)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = runAgainst(t, server, "events", "credentials", "create", "k", "--file", file)
	require.ErrorContains(t, err, "--file "+file+" already exists")
	require.Equal(t, 1, created)
	other := file + "2"
	_, err = runAgainst(t, server, "events", "credentials", "create", "k", "--file", other)
	require.Error(t, err)
	require.NoFileExists(t, other, "no empty file is left")
}
