package backup_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	"anneal/eventlog/integrity"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/eventlog/transparency"
	"anneal/internal/backup"
	"anneal/internal/datadir"
	"anneal/internal/testutil"
	"anneal/projections"
)

// An installation is a data directory with its log, key store and bucket, without an API.
type installation struct {
	testing.TB
	dir     datadir.Dir
	server  *natsserver.Server
	world   *projections.World
	files   *blobs.Store
	vault   *secrets.Vault
	answers *idempotency.Store

	reconciler *reconcile.Reconciler
}

func open(t testing.TB, dir datadir.Dir) *installation {
	i := &installation{TB: t, dir: dir}
	for _, key := range datadir.SharedKeys {
		_, err := dir.Key(key)
		require.NoError(t, err)
	}
	for _, name := range []string{"context.json", "operator.json"} {
		require.NoError(t, dir.WriteContext(name, datadir.Context{Address: "http://127.0.0.1:1", APIKey: "k"}))
	}
	ring, err := secrets.OpenKeyRing(dir.RingPath())
	require.NoError(t, err)
	i.server, err = natsserver.Start(natsserver.Options{Dir: dir.Path("nats")})
	require.NoError(t, err)
	i.world, err = projections.Open(t.Context(), i.server.Log(), dir.Path("snapshots"))
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = i.world.Run(ctx, i.server.Log()) })
	logger := slog.New(slog.DiscardHandler)
	i.vault, err = secrets.OpenLocalVault(t.Context(), i.server.Control(), ring, dir.LocalStore("datakeys", logger))
	require.NoError(t, err)
	i.answers, err = idempotency.OpenLocal(t.Context(), i.server.Control(), dir.LocalStore("answers", logger))
	require.NoError(t, err)
	i.files, err = blobs.Open(t.Context(), blobs.Options{Dir: dir.Path("blobs"), BaseURL: "http://127.0.0.1:1/blobs",
		Key: make([]byte, 32)})
	require.NoError(t, err)
	i.reconciler = reconcile.New(reconcile.Options{Log: i.server.Log(), World: i.world, Blobs: i.files, Keys: i.vault})
	running.Go(func() { _ = i.reconciler.Run(ctx) })
	t.Cleanup(func() {
		stop()
		running.Wait()
		require.NoError(t, i.files.Close())
		require.NoError(t, i.vault.Close())
		require.NoError(t, i.answers.Close())
		i.server.Close()
	})
	return i
}

func newInstallation(t testing.TB) *installation {
	i := open(t, datadir.Dir(t.TempDir()))
	i.do(domain.Intend(domain.Accounts, "accounts/acme", domain.CreateAccount{AccountSpec: domain.AccountSpec{
		DisplayName: "A", AccountType: domain.Enterprise}}))
	return i
}

func (i *installation) signer() *transparency.Signer {
	i.Helper()
	pepper, err := i.dir.Key("pepper")
	require.NoError(i, err)
	signer, err := transparency.NewSigner(pepper)
	require.NoError(i, err)
	return signer
}

// key returns the public key of the installation's signatures.
func (i *installation) key() note.Verifier {
	i.Helper()
	key, err := transparency.ParseKey(i.signer().Key())
	require.NoError(i, err)
	return key
}

func (i *installation) source() backup.Source {
	return backup.Source{Signer: i.signer(), Control: i.server.Control(), Log: i.server.Log(), World: i.world,
		Files:    i.files,
		DataKeys: i.vault.Records(), Answers: i.answers.Records(), Dir: i.dir, Version: "test",
		Logger: slog.New(slog.DiscardHandler)}
}

func (i *installation) do(intent domain.Intent) {
	i.Helper()
	i.doAt(time.Now(), intent)
}

// doAt records the events of an intent with a time.
func (i *installation) doAt(at time.Time, intent domain.Intent) {
	i.Helper()
	request := eventlog.Request{Time: at, Actor: "test"}
	result, err := eventlog.Do(context.Background(), i.server.Log(), i.world, request, intent)
	require.NoError(i, err)
	require.NoError(i, i.world.WaitFor(context.Background(), result.Position()))
}

func modelName(n int) domain.Name  { return domain.NewName("acme", "models", fmt.Sprintf("m%d", n)) }
func secretName(n int) domain.Name { return domain.NewName("acme", "secrets", fmt.Sprintf("s%d", n)) }
func modelFile(n int) string       { return fmt.Sprintf("models/acme/%d/weights", n) }
func modelContent(n int) string    { return strings.Repeat(fmt.Sprintf("weights of %d\n", n), 100) }
func secretValue(n int) string     { return fmt.Sprintf("value of %d", n) }
func (i *installation) create(n int) {
	i.Helper()
	_, err := i.files.Put(context.Background(), modelFile(n), strings.NewReader(modelContent(n)))
	require.NoError(i, err)
	i.do(domain.Intend(domain.Models, modelName(n), domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, Files: domain.Files{Prefix: filepath.Dir(modelFile(n)) + "/",
			Sizes: map[string]int64{"weights": int64(len(modelContent(n)))}}}))
	sealed, err := i.vault.Seal(context.Background(), secretName(n), []byte(secretValue(n)))
	require.NoError(i, err)
	i.do(domain.Intend(domain.Secrets, secretName(n), domain.CreateSecret{KeyName: "K", Value: sealed}))
}

func (i *installation) remove(n int) {
	i.Helper()
	i.do(domain.Intend(domain.Models, modelName(n), domain.RequestDeletion(domain.Models)))
	i.do(domain.Intend(domain.Models, modelName(n), domain.DeleteModel{}))
	i.do(domain.Intend(domain.Secrets, secretName(n), domain.RequestDeletion(domain.Secrets)))
	i.do(domain.Intend(domain.Secrets, secretName(n), domain.DeleteSecret{}))
}

// check requires that exactly the models and secrets of the given numbers exist, with their
// contents.
func (i *installation) check(numbers ...int) {
	i.Helper()
	view := i.world.View()
	require.Equal(i, len(numbers), view.Models.Count("acme"))
	for _, n := range numbers {
		content, err := i.files.Get(context.Background(), modelFile(n))
		require.NoError(i, err)
		text := testutil.ReadAll(i, content)
		require.NoError(i, content.Close())
		require.Equal(i, modelContent(n), string(text))
		row, ok := view.Secrets.Get(secretName(n))
		require.True(i, ok)
		value, err := i.vault.Open(context.Background(), secretName(n), row.State.Value)
		require.NoError(i, err)
		require.Equal(i, secretValue(n), string(value))
	}
}

// A target is a bucket of backups with the identity that decrypts them.
type target struct {
	testing.TB
	dir      string
	bucket   *blobs.Store
	settings backup.Settings
	identity []age.Identity
}

func newTarget(t testing.TB) *target {
	dir := t.TempDir()
	bucket, err := backup.Open(t.Context(), filepath.Join(dir, "bucket"))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, bucket.Close()) })
	content, recipient, err := backup.NewIdentity("")
	require.NoError(t, err)
	file := filepath.Join(dir, "identity")
	require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
	identity, err := backup.ReadIdentities(file)
	require.NoError(t, err)
	return &target{t, filepath.Join(dir, "bucket"), bucket, backup.Settings{Recipients: []string{recipient}}, identity}
}

func (to *target) backup(from *installation) backup.Manifest {
	to.Helper()
	m, err := backup.Run(context.Background(), from.source(), to.bucket, to.settings, func(int64) {})
	require.NoError(to, err)
	return m
}

// restore restores a backup to a new directory, whose log must then be complete, with the hash
// chain of its high-water mark.
func (to *target) restore(s backup.RestoreSettings) (datadir.Dir, backup.Restored, error) {
	to.Helper()
	dir := datadir.Dir(filepath.Join(to.TempDir(), "data"))
	s.Logger = slog.New(slog.DiscardHandler)
	if s.Identities == nil {
		s.Identities = to.identity
	}
	restored, err := backup.Restore(context.Background(), to.bucket, dir, s)
	if err == nil {
		found, err := integrity.VerifyFiles(dir.Path("nats"), "", restored.Checkpoint)
		require.NoError(to, err)
		require.True(to, found.Intact(), found)
		require.Equal(to, restored.Position, found.Events)
		require.Equal(to, found.Hash, found.Marked)
	}
	return dir, restored, err
}

// overwrite replaces the content of a file of the bucket, and its stored digest.
func (to *target) overwrite(path, content string) {
	to.Helper()
	key, err := filepath.Rel(to.dir, path)
	require.NoError(to, err)
	require.NoError(to, to.bucket.Delete(to.Context(), key))
	_, err = to.bucket.Put(to.Context(), key, strings.NewReader(content))
	require.NoError(to, err)
}
