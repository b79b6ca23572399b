package main_test

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// doctor returns the results of `anneal doctor` by check, and the details by check. failed states
// whether the command must fail.
func doctor(t *testing.T, failed bool, args ...string) (results, details map[string]string) {
	t.Helper()
	command := exec.Command(binary(t), append([]string{"doctor", "-o", "json"}, args...)...)
	command.Env = environment(t.TempDir())
	out, err := command.Output()
	require.Equal(t, failed, err != nil, "%s", out)
	var findings []struct{ Check, Result, Detail, Advice string }
	require.NoError(t, json.Unmarshal(out, &findings))
	results, details = map[string]string{}, map[string]string{}
	for _, one := range findings {
		results[one.Check], details[one.Check] = one.Result, one.Detail
		require.Equal(t, one.Result == "warning" || one.Result == "failed", one.Advice != "", "%v", one)
	}
	return results, details
}

// TestDoctor checks that the doctor finds nothing at a running server, and each fault that this test
// makes.
func TestDoctor(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	args := []string{"--data", s.dir, "--speech", "none"}
	healthy, _ := doctor(t, false, args...)
	for _, name := range []string{"data directory", "private files", "keys", "file descriptors", "log", "deletions",
		"server", "nodes"} {
		require.Equal(t, "ok", healthy[name], name)
	}
	require.Zero(t, s.end())

	key, held := filepath.Join(s.dir, "keys", "pepper"), filepath.Join(s.dir, "sweep.held")
	mark := filepath.Join(s.dir, "nats.mark")
	text, err := os.ReadFile(key)
	require.NoError(t, err)
	marked, err := os.ReadFile(mark)
	require.NoError(t, err)
	for _, fault := range []struct {
		check, result string
		failed        bool
		make, undo    func() error
	}{
		{"private files", "failed", true, func() error { return os.Chmod(key, 0o644) },
			func() error { return os.Chmod(key, 0o600) }},
		{"keys", "failed", true, func() error { return os.WriteFile(key, []byte("0"), 0o600) },
			func() error { return os.WriteFile(key, text, 0o600) }},
		{"deletions", "warning", false, func() error { return os.WriteFile(held, []byte("a test"), 0o600) },
			func() error { return os.Remove(held) }},
		{"log", "failed", true, func() error { return os.WriteFile(mark, []byte("x"), 0o600) },
			func() error { return os.WriteFile(mark, marked, 0o600) }},
	} {
		require.NoError(t, fault.make())
		results, details := doctor(t, fault.failed, args...)
		require.Equal(t, fault.result, results[fault.check], "%v", details)
		require.Equal(t, "skipped", results["server"], "the server is stopped")
		require.NoError(t, fault.undo())
	}
	results, _ := doctor(t, false, args...)
	require.Equal(t, "ok", results["keys"])
}

// TestSupportBundleHasNoSecrets checks that a support bundle has all its files, and none of the
// secrets of the installation.
func TestSupportBundleHasNoSecrets(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	value := filepath.Join(t.TempDir(), "value")
	require.NoError(t, os.WriteFile(value, []byte("a secret value 4711"), 0o600))
	s.run("secret", "create", "k", "--key-name", "K", "--value-file", value).ok(t)
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	s.run("support-bundle", bundle, "--data", s.dir, "--public-url", "https://name:password4711@127.0.0.1:1").ok(t)

	secrets := []string{"a secret value 4711", "password4711", s.context.APIKey}
	for _, pattern := range []string{"operator.json", filepath.Join("keys", "*")} {
		paths, err := filepath.Glob(filepath.Join(s.dir, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, paths)
		for _, path := range paths {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			if len(text) > 30 {
				secrets = append(secrets, string(text[:30]))
			}
		}
	}
	file, err := os.Open(bundle)
	require.NoError(t, err)
	defer file.Close()
	info, err := file.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	archive, names := tar.NewReader(unzipped), []string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		content, err := io.ReadAll(archive)
		require.NoError(t, err)
		require.NotContains(t, string(content), "not collected", header.Name)
		for _, secret := range secrets {
			require.NotContains(t, string(content), secret, header.Name)
		}
		names = append(names, filepath.Base(header.Name))
	}
	require.ElementsMatch(t, []string{"version.json", "settings.json", "doctor.json", "files.txt", "readyz.json",
		"readyz-write.json", "metrics.txt", "metrics-detailed.txt", "nodes.json", "accounts.json", "backups.json"}, names)
	require.NotZero(t, s.run("support-bundle", bundle, "--data", s.dir).code, "nothing is overwritten")
}
