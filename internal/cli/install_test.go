package cli

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

// executed returns the output of a command line.
func executed(t *testing.T, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	c := NewRoot("test")
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(args)
	require.NoError(t, c.ExecuteContext(t.Context()), args)
	return out.String()
}

// filesBelow returns the paths of the files below a directory, without manual pages.
func filesBelow(t *testing.T, root string) (paths []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && !entry.IsDir() && !strings.Contains(path, "/man1/") {
			paths = append(paths, strings.TrimPrefix(path, root))
		}
		return err
	}))
	slices.Sort(paths)
	return paths
}

// TestInstall checks which files an installation writes, that another one keeps the settings of the
// operator, and what remains after an uninstallation.
func TestInstall(t *testing.T) {
	root := t.TempDir()
	preview := executed(t, "install", "server", "--root", root, "--dry-run")
	require.Contains(t, preview, "ExecStart=/usr/local/bin/anneal serve --config /etc/anneal/server.yaml\n")
	require.Contains(t, preview, "# /usr/local/bin/anneal\n")
	require.Empty(t, filesBelow(t, root), "a dry run writes nothing")

	require.Contains(t, executed(t, "install", "server", "--root", root), "systemctl start anneal.service")
	executed(t, "install", "agent", "--root", root)
	all := []string{"/etc/anneal/agent.env", "/etc/anneal/agent.yaml", "/etc/anneal/server.env",
		"/etc/anneal/server.yaml", "/etc/systemd/system/anneal-agent.service", "/etc/systemd/system/anneal.service",
		"/etc/sysusers.d/anneal.conf", "/usr/local/bin/anneal",
		"/usr/local/share/bash-completion/completions/anneal",
		"/usr/local/share/fish/vendor_completions.d/anneal.fish", "/usr/local/share/zsh/site-functions/_anneal"}
	require.Equal(t, all, filesBelow(t, root))
	program, err := os.Stat(filepath.Join(root, "/usr/local/bin/anneal"))
	require.NoError(t, err)
	require.Equal(t, fs.FileMode(0o755), program.Mode())
	_, err = os.Stat(filepath.Join(root, "/usr/local/share/man/man1/anneal-dataset-create.1"))
	require.NoError(t, err)

	settings := filepath.Join(root, "/etc/anneal/server.yaml")
	require.NoError(t, os.WriteFile(settings, []byte("data: /srv/anneal\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(root, "/etc/systemd/system/anneal.service"), []byte("old"), 0o600))
	var again struct{ Written []string }
	require.NoError(t, json.Unmarshal([]byte(executed(t, "install", "server", "--root", root, "-o", "json")), &again))
	require.Equal(t, []string{"/etc/systemd/system/anneal.service"}, again.Written)
	kept, err := os.ReadFile(settings)
	require.NoError(t, err)
	require.Equal(t, "data: /srv/anneal\n", string(kept))

	require.Contains(t, executed(t, "uninstall", "server", "--root", root),
		"these remain: /var/lib/anneal (data and keys)")
	require.Equal(t, slices.DeleteFunc(slices.Clone(all), func(path string) bool {
		return path == "/etc/systemd/system/anneal.service"
	}), filesBelow(t, root), "the agent needs the others")
	executed(t, "uninstall", "agent", "--root", root)
	require.Equal(t, all[:4], filesBelow(t, root), "settings remain")
	executed(t, "uninstall", "agent", "--root", root) // again

	c := NewRoot("test")
	c.SetArgs([]string{"install", "database", "--root", root})
	require.ErrorContains(t, c.ExecuteContext(t.Context()), `SERVICE "database" must be server or agent`)
}

// TestSettingsOfInstalledServices checks that the settings that an installation writes are valid.
func TestSettingsOfInstalledServices(t *testing.T) {
	root := t.TempDir()
	executed(t, "install", "server", "--root", root)
	executed(t, "install", "agent", "--root", root)
	for service, command := range map[string]string{"server": "serve", "agent": "work"} {
		got := executed(t, "config", "check", command, "--config", filepath.Join(root, "etc/anneal", service+".yaml"))
		require.Contains(t, got, "/var/lib/anneal")
	}
}

// TestEveryCommandHasManualPage checks that each visible command has a page with its summary and flags.
func TestEveryCommandHasManualPage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	executed(t, "man", dir)
	var visit func(c *cobra.Command)
	pages := 0
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Deprecated != "" || c.Name() == "help" {
			return
		}
		pages++
		page, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(c.CommandPath(), " ", "-")+".1"))
		require.NoError(t, err)
		plain := strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\&`, "", `\\`, `\`).Replace(string(page))
		require.Contains(t, plain, strings.ToUpper(strings.ReplaceAll(c.CommandPath(), " ", "-")))
		require.Contains(t, plain, strings.Fields(c.Short)[0], c.CommandPath())
		for _, f := range []string{"context", "output"} {
			require.Contains(t, plain, "--"+f, c.CommandPath())
		}
		for _, child := range c.Commands() {
			visit(child)
		}
	}
	root := NewRoot("test")
	root.InitDefaultCompletionCmd()
	visit(root)
	written, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, written, pages, "every page is of a command")
}
