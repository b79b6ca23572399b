package backup_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"filippo.io/age"
	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/backup"
	"anneal/internal/testutil"
)

const padding = 256 << 10 // bytes, more than any buffer of a decoder

// secretsOf returns the decrypted secrets of a backup.
func (to *target) secretsOf(m backup.Manifest) (all map[string]map[string][]byte) {
	to.Helper()
	encrypted := testutil.ReadFile(to, filepath.Join(to.dir, m.Secrets.Key))
	plain, err := age.Decrypt(bytes.NewReader(encrypted), to.identity...)
	require.NoError(to, err)
	require.NoError(to, json.NewDecoder(plain).Decode(&all))
	return all
}

// encrypt returns secrets, followed by spaces, encrypted for the recipients of the target.
func (to *target) encrypt(secrets any, spaces int) string {
	to.Helper()
	recipient, err := age.ParseX25519Recipient(to.settings.Recipients[0])
	require.NoError(to, err)
	var out bytes.Buffer
	w, err := age.Encrypt(&out, recipient)
	require.NoError(to, err)
	require.NoError(to, json.NewEncoder(w).Encode(secrets))
	_, err = io.WriteString(w, strings.Repeat(" ", spaces))
	require.NoError(to, err)
	require.NoError(to, w.Close())
	return out.String()
}

// TestReplacedSecrets replaces the secrets of a signed backup by others, whose JSON ends long
// before the object. A restore refuses them, before and after the manifest has their digest.
func TestReplacedSecrets(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	m := to.backup(from)
	path := filepath.Join(to.dir, m.Secrets.Key)
	for _, spaces := range []int{0, padding} {
		to.overwrite(path, to.encrypt(to.secretsOf(m), spaces))
		dir, _, err := to.restore(backup.RestoreSettings{Key: from.key()})
		require.ErrorContains(t, err, m.Secrets.Key+" in the bucket of backups is damaged", spaces)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err))
		require.NoDirExists(t, string(dir))
	}
}

// TestNamesOfSecretFiles checks that a restore writes keys and contexts only.
func TestNamesOfSecretFiles(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	m := to.backup(from)
	secrets := to.secretsOf(m)
	manifest := filepath.Join(to.dir, "manifests", m.ID+".json")
	for _, name := range []string{"keys/../nats/x", "nats/jetstream/x", "snapshots/1", "/etc/x", "../x", "keys", "x.json",
		"keys//x", "context.json/x"} {
		secrets["files"][name] = []byte("x")
		content := to.encrypt(secrets, 0)
		delete(secrets["files"], name)
		to.overwrite(filepath.Join(to.dir, m.Secrets.Key), content)
		sum := sha256.Sum256([]byte(content))
		changed := m
		changed.Secrets.Size, changed.Secrets.SHA256 = int64(len(content)), hex.EncodeToString(sum[:])
		body, err := json.Marshal(changed)
		require.NoError(t, err)
		to.overwrite(manifest, string(body)+"\n")
		_, _, err = to.restore(backup.RestoreSettings{})
		require.ErrorContains(t, err, "has the invalid path", name)
	}
}

// TestReplacedLines checks that no line of a replaced segment or list is used.
func TestReplacedLines(t *testing.T) {
	to := newTarget(t)
	pack := func(text string) string {
		var out bytes.Buffer
		w, err := zstd.NewWriter(&out)
		require.NoError(t, err)
		_, err = io.WriteString(w, text)
		require.NoError(t, err)
		require.NoError(t, w.Close())
		return out.String()
	}
	content := pack("a\nb\n")
	sum := sha256.Sum256([]byte(content))
	object := backup.Object{Key: "usage/1-x.zst", Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	_, err := to.bucket.Put(t.Context(), object.Key, strings.NewReader(content))
	require.NoError(t, err)
	var used []string
	each := func(line []byte) error {
		used = append(used, string(line))
		return nil
	}
	require.NoError(t, backup.Lines(t.Context(), to.bucket, object, each))
	require.Equal(t, []string{"a", "b"}, used)
	used = nil
	for what, other := range map[string]string{"other": pack("c\n"), "shorter": content[:len(content)-1],
		"longer": content + pack("c\n"), "padded": content + strings.Repeat(" ", padding)} {
		to.overwrite(filepath.Join(to.dir, object.Key), other)
		err := backup.Lines(t.Context(), to.bucket, object, each)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), what)
		require.Empty(t, used, what)
	}
}

// TestReadersOfObjects lists the code that reads the bucket of backups without openObject, which
// returns verified content only.
func TestReadersOfObjects(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	reader := regexp.MustCompile(`(?m)^.*(target\.Get\(|streamObject\().*$`)
	var found []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, line := range reader.FindAllString(string(content), -1) {
			found = append(found, file+": "+strings.TrimSpace(line))
		}
	}
	require.Equal(t, []string{
		"format.go: content, err := target.Get(ctx, key)", // readManifest: its signature is verified
		"verified.go: func streamObject(ctx context.Context, target *blobs.Store, o Object) (*verified, error) {",
		"verified.go: content, err := target.Get(ctx, o.Key)",
		"verified.go: content, err := streamObject(ctx, target, o)", // openObject
		"verified.go: content, err := streamObject(ctx, target, o)", // copyObject, which reads to the end
	}, found)
}

// TestAdviceForDamagedBackups follows the advice of a restore and of a backup that find a damaged
// object or manifest.
func TestAdviceForDamagedBackups(t *testing.T) {
	from, to := newInstallation(t), newTarget(t)
	from.create(1)
	first := to.backup(from)
	from.create(2)
	second := to.backup(from)
	third := to.backup(from)
	advice := ": move manifests/" + second.ID + ".json and all later manifests out of the target"
	manifest := "manifests/" + second.ID + ".json"
	for _, key := range []string{second.Events[0].Key, second.Files.List.Key, manifest} {
		path := filepath.Join(to.dir, key)
		content := string(testutil.ReadFile(t, path))
		to.overwrite(path, "x"+content)
		_, _, err := to.restore(backup.RestoreSettings{})
		require.ErrorContains(t, err, advice+"; restore then uses the backup before them", key)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), key)
		if key == second.Files.List.Key {
			to.backupFails(from, advice+"; the next backup then continues the one before them")
			_, err = backup.Prune(t.Context(), to.bucket, from.source(), backup.Retention{Newest: 2})
			require.ErrorContains(t, err, advice+", and prune again")
			require.Len(t, to.ids(), 3, "nothing was removed")
		}
		to.overwrite(path, content)
	}
	for _, m := range []backup.Manifest{second, third} {
		require.NoError(t, to.bucket.Delete(t.Context(), "manifests/"+m.ID+".json"))
	}
	_, restored, err := to.restore(backup.RestoreSettings{})
	require.NoError(t, err)
	require.Equal(t, first.ID, restored.Backup)
	require.Equal(t, first.ID, to.backup(from).Parent)
}
