//go:build unix

package install_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/install"
)

// TestWriteStaysBelowRoot checks that links in an image lead to files of the image: an absolute
// link, or one with "..", must not lead to files of this machine.
func TestWriteStaysBelowRoot(t *testing.T) {
	parent := t.TempDir()
	host, root := filepath.Join(parent, "host"), filepath.Join(parent, "image")
	require.NoError(t, os.MkdirAll(filepath.Join(host, "local"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "usr"), 0o755))
	for name, target := range map[string]string{"absolute": host, "relative": "../../../../" + host, "loop": "loop"} {
		require.NoError(t, os.Symlink(target, filepath.Join(root, "usr", name)))
	}
	for _, name := range []string{"absolute", "relative"} {
		file := install.File{Path: "/usr/" + name + "/local/" + name, Mode: 0o644, Content: []byte("new")}
		written, err := file.Write(root)
		require.NoError(t, err)
		require.True(t, written)
		require.FileExists(t, filepath.Join(root, host, "local", name), "below the root of the image")
		outside := filepath.Join(host, "local", name)
		require.NoFileExists(t, outside)
		require.NoError(t, os.WriteFile(outside, nil, 0o600))
		removed, err := file.Remove(root)
		require.NoError(t, err)
		require.True(t, removed)
		require.FileExists(t, outside)
	}
	_, err := install.File{Path: "/usr/loop/file", Mode: 0o644}.Write(root)
	require.ErrorContains(t, err, "too many symbolic links")
}

// TestWriteReplacesLinks checks that a file replaces a link of its name and not the file that the
// link refers to, and that settings that are a link are kept, also if their file does not exist.
func TestWriteReplacesLinks(t *testing.T) {
	root, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	require.NoError(t, os.WriteFile(other, []byte("new"), 0o600))
	link := filepath.Join(root, "file")
	require.NoError(t, os.Symlink(other, link))
	file := install.File{Path: "/file", Mode: 0o644, Content: []byte("new")}
	written, err := file.Write(root)
	require.NoError(t, err)
	require.True(t, written, "the image has only a link to the content")
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o644), info.Mode())

	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink("/does/not/exist", link))
	file.Keep = true
	written, err = file.Write(root)
	require.NoError(t, err)
	require.False(t, written)
	target, err := os.Readlink(link)
	require.NoError(t, err)
	require.Equal(t, "/does/not/exist", target)
}

// TestModesOfInstallation checks that services, which do not run as root, can read their settings
// even if the umask of root is strict, and that only root can read their secrets.
func TestModesOfInstallation(t *testing.T) {
	root := t.TempDir()
	umask := syscall.Umask(0o077)
	defer syscall.Umask(umask)
	for _, service := range []string{install.Server, install.Agent} {
		for _, file := range install.Files(service) {
			_, err := file.Write(root)
			require.NoError(t, err)
		}
	}
	modes := map[string]fs.FileMode{}
	for _, path := range []string{"etc", "etc/anneal", "etc/anneal/server.yaml", "etc/anneal/server.env",
		"etc/anneal/agent.yaml", "etc/anneal/agent.env", "etc/systemd/system/anneal.service"} {
		info, err := os.Stat(filepath.Join(root, path))
		require.NoError(t, err)
		modes[path] = info.Mode().Perm()
	}
	require.Equal(t, map[string]fs.FileMode{"etc": 0o755, "etc/anneal": 0o755, "etc/anneal/server.yaml": 0o644,
		"etc/anneal/server.env": 0o600, "etc/anneal/agent.yaml": 0o644, "etc/anneal/agent.env": 0o600,
		"etc/systemd/system/anneal.service": 0o644}, modes)
}
