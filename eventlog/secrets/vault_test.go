package secrets_test

import (
	"anneal/eventlog/servertest"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/internal/testutil"
)

const owner = domain.Name("accounts/acme/secrets/s")

func TestVault(t *testing.T) {
	ring := mustOpenRing(t, filepath.Join(t.TempDir(), "ring"))
	onJetStream := mustOpenVault(t, servertest.Start(t).Control(), ring)
	for kind, vault := range map[string]*secrets.Vault{"memory": secrets.NewMemoryVault(), "JetStream": onJetStream} {
		t.Run(kind, func(t *testing.T) { testVault(t, vault) })
	}
}

func testVault(t *testing.T, vault *secrets.Vault) {
	ctx := t.Context()
	sealed, err := vault.Seal(ctx, owner, []byte("value"))
	require.NoError(t, err)
	again, err := vault.Seal(ctx, owner, []byte("value"))
	require.NoError(t, err)
	assert.NotEqual(t, sealed.KeyID, again.KeyID, "each value has its own data key")
	assert.NotEqual(t, sealed.Ciphertext, again.Ciphertext)
	edit := func(change func(*domain.Sealed)) domain.Sealed {
		one := sealed
		one.Ciphertext = bytes.Clone(sealed.Ciphertext)
		change(&one)
		return one
	}
	for _, test := range []struct {
		what   string
		name   domain.Name
		sealed domain.Sealed
		code   domain.Code
	}{
		{"as it was sealed", owner, sealed, domain.OK},
		{"for another resource", owner + "x", sealed, domain.DataLoss},
		{"by an earlier scheme", owner, edit(func(s *domain.Sealed) { s.Scheme, s.Bound = 0, "TOKEN\x001" }),
			domain.DataLoss},
		{"by a later scheme", owner, edit(func(s *domain.Sealed) { s.Scheme++ }), domain.FailedPrecondition},
		{"changed", owner, edit(func(s *domain.Sealed) { s.Ciphertext[len(s.Ciphertext)-1] ^= 1 }), domain.DataLoss},
		{"cut short", owner, edit(func(s *domain.Sealed) { s.Ciphertext = s.Ciphertext[:5] }), domain.DataLoss},
		{"with another's key", owner, edit(func(s *domain.Sealed) { s.KeyID = again.KeyID }), domain.DataLoss},
		{"with no key", owner, edit(func(s *domain.Sealed) { s.KeyID = "" }), domain.NotFound},
		{"with a wildcard for a key", owner, edit(func(s *domain.Sealed) { s.KeyID = ">" }), domain.NotFound},
	} {
		value, err := vault.Open(ctx, test.name, test.sealed)
		assert.Equal(t, test.code, domain.CodeOf(err), "%s: %v", test.what, err)
		if test.code == domain.OK {
			assert.Equal(t, "value", value.Reveal())
		}
	}
	_, err = vault.Seal(ctx, owner, make([]byte, secrets.MaxSealed+1))
	assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))

	for range 2 {
		require.NoError(t, vault.Shred(ctx, sealed.KeyID))
		_, err = vault.Open(ctx, owner, sealed)
		assert.Equal(t, domain.NotFound, domain.CodeOf(err))
	}
	require.NoError(t, vault.Shred(ctx, ">"), "no key has this ID")
	value, err := vault.Open(ctx, owner, again)
	require.NoError(t, err, "other keys remain")
	assert.Equal(t, "value", value.Reveal())
}

// TestVaultOpensValuesOfTheFirstScheme checks that Open decrypts values that earlier versions of
// anneal bound to a key name and version, which the fold stores in Sealed.Bound, even after the key
// name was changed.
func TestVaultOpensValuesOfTheFirstScheme(t *testing.T) {
	vault, key := secrets.NewMemoryVault(), bytes.Repeat([]byte{7}, secrets.KeyBytes)
	id := uuid.NewString()
	record, err := vault.Wrap(id, key)
	require.NoError(t, err)
	_, err = vault.Keys().Put(t.Context(), id, record, 0)
	require.NoError(t, err)
	ciphertext, err := secrets.Encrypt(key, []byte("old"), []byte("accounts/acme/secrets/s\x00TOKEN\x002"))
	require.NoError(t, err)

	var secret domain.Secret
	for _, e := range []domain.Event[domain.Secret]{
		domain.SecretCreated{KeyName: "FIRST", Value: domain.Sealed{KeyID: "x", Ciphertext: []byte{1}}},
		domain.SecretUpdated{KeyName: "TOKEN", Value: &domain.Sealed{KeyID: id, Ciphertext: ciphertext}},
		domain.SecretUpdated{KeyName: "RENAMED"},
	} {
		e.Evolve(&secret)
	}
	value, err := vault.Open(t.Context(), owner, secret.Value)
	require.NoError(t, err)
	assert.Equal(t, "old", value.Reveal())
	for made, err := range vault.DataKeys(t.Context()) {
		require.NoError(t, err)
		assert.Equal(t, secrets.DataKey{ID: id}, made, "a key of an earlier version has no creation time")
	}
}

func TestDataKeysHaveACreationTime(t *testing.T) {
	vault := secrets.NewMemoryVault()
	before := time.Now().Add(-time.Millisecond)
	sealed, err := vault.Seal(t.Context(), owner, []byte("v"))
	require.NoError(t, err)
	for key, err := range vault.DataKeys(t.Context()) {
		require.NoError(t, err)
		assert.Equal(t, sealed.KeyID, key.ID)
		assert.False(t, key.Time.Before(before.Truncate(time.Millisecond)), "%s", key.Time)
		assert.False(t, key.Time.After(time.Now().Add(time.Millisecond)), "%s", key.Time)
	}
}

// onDisk reports whether any file below dir contains the bytes needle.
func onDisk(t *testing.T, dir string, needle []byte) bool {
	found := false
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		content, err := os.ReadFile(path)
		found = found || bytes.Contains(content, needle)
		return err
	}))
	return found
}

func TestShreddedKeysLeaveTheDisk(t *testing.T) {
	dir := t.TempDir()
	s := servertest.Start(t, func(o *natsserver.Options) { o.Dir, o.NoSync = dir, false })
	ring := mustOpenRing(t, filepath.Join(t.TempDir(), "ring"))
	vault := mustOpenVault(t, s.Control(), ring)
	const canary = "canary-9c41f0"
	sealed, err := vault.Seal(t.Context(), owner, []byte(canary))
	require.NoError(t, err)
	w := logtest.Write("secret", 0)
	w.Data = fmt.Appendf(nil, `{"ciphertext":%q}`, base64.StdEncoding.EncodeToString(sealed.Ciphertext))
	logtest.Append(t, s.Log(), w)

	record, _, err := vault.Keys().Get(t.Context(), sealed.KeyID)
	require.NoError(t, err)
	require.True(t, onDisk(t, dir, record), "else this test would prove nothing")
	require.NoError(t, vault.Shred(t.Context(), sealed.KeyID))
	assert.False(t, onDisk(t, dir, record), "the wrapped key is overwritten")
	s.Close()
	assert.False(t, onDisk(t, dir, record), "and stays overwritten")
	assert.False(t, onDisk(t, dir, []byte(canary)), "the value itself was never stored")
}

func TestKeyBucketIsAKeyValueBucket(t *testing.T) {
	s := servertest.Start(t)
	js := servertest.JetStream(t, s.Control())
	kv, err := js.KeyValue(t.Context(), "KEYS")
	require.NoError(t, err)
	status, err := kv.Status(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 1, status.History())
	ring := mustOpenRing(t, filepath.Join(t.TempDir(), "ring"))
	vault := mustOpenVault(t, s.Control(), ring)
	sealed, err := vault.Seal(t.Context(), owner, []byte("v"))
	require.NoError(t, err)
	_, err = kv.Get(t.Context(), sealed.KeyID)
	require.NoError(t, err)
	require.NoError(t, kv.Delete(t.Context(), sealed.KeyID), "also by other tools")
	_, err = vault.Open(t.Context(), owner, sealed)
	assert.Equal(t, domain.NotFound, domain.CodeOf(err))
	require.NoError(t, vault.Shred(t.Context(), sealed.KeyID))
	_, err = kv.Get(t.Context(), sealed.KeyID)
	assert.ErrorIs(t, err, jetstream.ErrKeyNotFound)
}

func TestRotation(t *testing.T) {
	s := servertest.Start(t)
	path := filepath.Join(t.TempDir(), "ring")
	open := func() *secrets.Vault {
		ring := mustOpenRing(t, path)
		vault := mustOpenVault(t, s.Control(), ring)
		return vault
	}
	before := open()
	var sealed []domain.Sealed
	for i := range 3 {
		one, err := before.Seal(t.Context(), owner, fmt.Append(nil, i))
		require.NoError(t, err)
		sealed = append(sealed, one)
	}
	opens := func(vault *secrets.Vault) (all error) {
		for i, one := range sealed {
			value, err := vault.Open(t.Context(), owner, one)
			if err != nil {
				return err
			}
			assert.Equal(t, fmt.Sprint(i), value.Reveal())
		}
		return nil
	}
	_, err := secrets.RotateKeyRing(path)
	require.NoError(t, err)
	after := open()
	require.NoError(t, opens(after), "old keys unwrap")
	changed, err := after.Rewrap(t.Context())
	require.NoError(t, err)
	assert.Equal(t, 3, changed)
	changed, err = after.Rewrap(t.Context())
	require.NoError(t, err)
	assert.Zero(t, changed)

	lines := testutil.ReadFile(t, path)
	_, newest, _ := strings.Cut(string(lines), "\n")
	require.NoError(t, secrets.RetireKeys(path))
	lines = testutil.ReadFile(t, path)
	require.Equal(t, newest, string(lines))
	info := testutil.Stat(t, path)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, opens(open()), "the old key is no longer needed")
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(opens(before)),
		"and a process without the new key reports it")
}

func TestInvalidKeyRings(t *testing.T) {
	key := base64.StdEncoding.EncodeToString(make([]byte, secrets.KeyBytes))
	tests := map[string]struct{ text, want string }{
		"empty":          {"\n \n", "empty"},
		"no id":          {key, "line 1"},
		"short key":      {"a " + key + "\nb c2hvcnQ=", "line 2"},
		"no base64":      {"a canary!", "line 1"},
		"a duplicate ID": {"a " + key + "\na " + key, "line 2"},
	}
	for what, test := range tests {
		_, err := secrets.ParseKeyRing(test.text)
		require.ErrorContains(t, err, test.want, what)
		assert.NotContains(t, err.Error(), "canary")
	}
	path := filepath.Join(t.TempDir(), "ring")
	ring := mustOpenRing(t, path)
	assert.NotContains(t, fmt.Sprintf("%v %+v %s %#v", ring, ring, ring, ring), ring.Current())
	info := testutil.Stat(t, path)
	assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	require.NoError(t, os.Chmod(path, 0o644))
	_, err := secrets.OpenKeyRing(path)
	require.ErrorContains(t, err, "chmod 600")
}

func TestVaultWithoutItsServer(t *testing.T) {
	s := servertest.Start(t)
	ring := mustOpenRing(t, filepath.Join(t.TempDir(), "ring"))
	vault := mustOpenVault(t, s.Control(), ring)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := vault.Seal(ctx, owner, []byte("canary"))
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "canary")
}

func mustOpenRing(t testing.TB, path string) *secrets.KeyRing {
	t.Helper()
	ring, err := secrets.OpenKeyRing(path)
	require.NoError(t, err)
	return ring
}

func mustOpenVault(t testing.TB, nc *nats.Conn, ring *secrets.KeyRing) *secrets.Vault {
	t.Helper()
	vault, err := secrets.OpenVault(t.Context(), nc, ring)
	require.NoError(t, err)
	return vault
}
