package secrets

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/kv"
)

// MaxSealed is the maximum size of a sealed value in bytes.
const MaxSealed = 64 << 10

// A Vault encrypts (seals) values that must be erasable although events cannot be deleted. Each
// value has a data key of its own. The event contains the ciphertext; a key store outside of the
// log has the data key, wrapped by a master key of the ring. Erasing the data key makes the value
// unreadable.
type Vault struct {
	ring *KeyRing
	keys kv.Store
}

// Records returns the key store, with the wrapped data keys.
func (v *Vault) Records() kv.Store { return v.keys }

// NewMemoryVault returns a Vault in memory, for tests.
func NewMemoryVault() *Vault {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)
	return &Vault{&KeyRing{"memory", map[string][]byte{"memory": key}}, kv.NewMemory()}
}

// A wrappedKey is the stored form of a data key.
type wrappedKey struct {
	Ring    string `json:"ring"` // ID of the master key that wrapped the data key
	Wrapped []byte `json:"wrapped"`
}

// Seal encrypts a value of the resource name with a new data key. Open accepts the result only for
// the same resource.
func (v *Vault) Seal(ctx context.Context, name domain.Name, value []byte) (domain.Sealed, error) {
	if len(value) > MaxSealed {
		return domain.Sealed{}, domain.Errorf(domain.InvalidArgument, "the secret value has %d bytes: at most %d are allowed",
			len(value), MaxSealed)
	}
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)     // crypto/rand.Read never returns an error
	made, err := uuid.NewV7() // a UUIDv7 contains the time, from which DataKeys reads the creation time
	if err != nil {
		return domain.Sealed{}, err
	}
	sealed := domain.Sealed{KeyID: made.String(), Scheme: domain.SealScheme}
	if sealed.Ciphertext, err = Encrypt(key, value, additionalData(name, sealed)); err != nil {
		return domain.Sealed{}, err
	}
	record, err := v.wrap(sealed.KeyID, key)
	if err != nil {
		return domain.Sealed{}, err
	}
	if _, err := v.keys.Put(ctx, sealed.KeyID, record, 0); err != nil {
		return domain.Sealed{}, err
	}
	return sealed, nil
}

// Open decrypts a value that Seal returned for the named resource. The error is NotFound when the
// data key was erased. It is DataLoss when the value belongs to another resource or was changed, or
// when the data key cannot be unwrapped. It is FailedPrecondition when the ring lacks the master
// key, or a newer version of anneal sealed the value.
func (v *Vault) Open(ctx context.Context, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error) {
	key, _, err := v.dataKey(ctx, sealed.KeyID)
	if err != nil {
		return "", err
	}
	if sealed.Scheme > domain.SealScheme {
		return "", domain.Errorf(domain.FailedPrecondition,
			"the value of %s uses encryption scheme %d, and this release supports schemes up to %d: upgrade anneal, or set "+
				"the value again", name, sealed.Scheme, domain.SealScheme)
	}
	value, err := Decrypt(key, sealed.Ciphertext, additionalData(name, sealed))
	if err != nil {
		return "", domain.Errorf(domain.DataLoss,
			"the encrypted value of %s belongs to another resource or was changed: set the value again", name)
	}
	return domain.SecretValue(value), nil
}

// ownerID is the ID of the record with the ID of the log to which the key store belongs.
const ownerID = "installation"

// Owner returns the ID of the log to which the vault belongs; "" when Claim was never called.
func (v *Vault) Owner(ctx context.Context) (string, error) {
	record, _, err := v.keys.Get(ctx, ownerID)
	return string(record), err
}

// Claim records that the vault belongs to a log, whose events refer to the data keys in it.
func (v *Vault) Claim(ctx context.Context, log string) error {
	_, revision, err := v.keys.Get(ctx, ownerID)
	if err == nil {
		_, err = v.keys.Put(ctx, ownerID, []byte(log), revision)
	}
	if errors.Is(err, eventlog.ErrConflict) {
		return nil // another process has claimed the vault at the same time; Owner returns the ID of its log
	}
	return err
}

// ids returns the IDs of all data keys.
func (v *Vault) ids(ctx context.Context) ([]string, error) {
	ids, err := v.keys.Keys(ctx)
	return slices.DeleteFunc(ids, func(id string) bool {
		return id == ownerID || strings.HasPrefix(id, saltPrefix)
	}), err
}

// DataKeys yields all data keys with their creation times. The time is zero for keys of early
// versions of anneal, whose IDs contain no time.
func (v *Vault) DataKeys(ctx context.Context) iter.Seq2[DataKey, error] {
	return func(yield func(DataKey, error) bool) {
		ids, err := v.ids(ctx)
		if err != nil {
			yield(DataKey{}, err)
			return
		}
		for _, id := range ids {
			if !yield(DataKey{id, createdAt(id)}, nil) {
				return
			}
		}
	}
}

// A DataKey describes a data key in the vault.
type DataKey struct {
	ID   string
	Time time.Time // when the data key was created; zero when unknown
}

func createdAt(id string) time.Time {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return time.Time{}
	}
	return time.Unix(parsed.Time().UnixTime()).UTC()
}

// Shred erases a data key on disk, so that every copy of the value that it encrypts becomes
// unreadable. A missing key is no error. Only the reconciler calls Shred, because a data key to
// which the current state refers must not be erased.
func (v *Vault) Shred(ctx context.Context, keyID string) error {
	if !plainID(keyID) {
		return nil // a data key cannot have this ID
	}
	return v.keys.Delete(ctx, keyID)
}

// Rewrap wraps every data key and salt key with the current master key of the ring. It returns the
// number of data keys that had another master key. Afterwards RetireKeys may remove the older
// master keys.
func (v *Vault) Rewrap(ctx context.Context) (changed int, err error) {
	ids, err := v.ids(ctx)
	if err == nil {
		err = v.Salts().rewrap(ctx)
	}
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		key, revision, err := v.dataKey(ctx, id)
		if domain.CodeOf(err) == domain.NotFound {
			continue // the data key was shredded concurrently
		}
		if err != nil {
			return changed, err
		}
		if revision.Ring == v.ring.current {
			continue
		}
		record, err := v.wrap(id, key)
		if err != nil {
			return changed, err
		}
		if _, err := v.keys.Put(ctx, id, record, revision.number); errors.Is(err, eventlog.ErrConflict) {
			continue // the data key was shredded or rewrapped concurrently
		} else if err != nil {
			return changed, err
		}
		changed++
	}
	return changed, nil
}

type keyRevision struct {
	wrappedKey
	number uint64
}

func (v *Vault) dataKey(ctx context.Context, id string) ([]byte, keyRevision, error) {
	var found keyRevision
	if !plainID(id) {
		return nil, found, domain.Errorf(domain.NotFound, "the encrypted value names no valid data key: set the value again")
	}
	record, revision, err := v.keys.Get(ctx, id)
	if err != nil {
		return nil, found, err
	}
	if revision == 0 {
		return nil, found, domain.Errorf(domain.NotFound, "the encrypted value cannot be read, because its data "+
			"key was erased: set the value again")
	}
	found.number = revision
	if err := json.Unmarshal(record, &found.wrappedKey); err != nil {
		return nil, found, domain.Errorf(domain.DataLoss, "cannot parse the stored data key %s: restore the key store "+
			"from a backup, or set the values again that it encrypts", id)
	}
	wrapping := v.ring.keys[found.Ring]
	if wrapping == nil {
		return nil, found, domain.Errorf(domain.FailedPrecondition,
			"the key ring lacks the master key %q, which wraps data key %s: restore the key ring from a backup", found.Ring, id)
	}
	key, err := Decrypt(wrapping, found.Wrapped, []byte(id))
	if err != nil {
		return nil, found, domain.Errorf(domain.DataLoss,
			"cannot unwrap data key %s, because master key %q of the key ring was replaced: restore the key ring from a backup",
			id, found.Ring)
	}
	return key, found, nil
}

// CheckRing returns a FailedPrecondition error when the ring lacks a master key that wraps data
// keys, or has a different key with its ID.
func (v *Vault) CheckRing(ctx context.Context) error {
	ids, err := v.ids(ctx)
	if err != nil {
		return err
	}
	tried := map[string]bool{} // IDs of the master keys that were checked already
	for _, id := range ids {
		record, revision, err := v.keys.Get(ctx, id)
		var wrapped wrappedKey
		if err != nil || revision == 0 || json.Unmarshal(record, &wrapped) != nil || tried[wrapped.Ring] {
			continue // Open reports that error for the values of this data key
		}
		tried[wrapped.Ring] = true
		if _, _, err := v.dataKey(ctx, id); err != nil {
			return domain.Errorf(domain.FailedPrecondition, "the key ring does not fit the stored data keys (%v): restore "+
				"keys/ring from a backup; or, to discard all secret values, move keys/ring and the directory datakeys away", err)
		}
	}
	return nil
}

func (v *Vault) wrap(id string, key []byte) ([]byte, error) {
	wrapped, err := Encrypt(v.ring.keys[v.ring.current], key, []byte(id))
	if err != nil {
		return nil, err
	}
	return json.Marshal(wrappedKey{v.ring.current, wrapped})
}

func plainID(id string) bool { return uuid.Validate(id) == nil && len(id) == 36 }

// additionalData returns the additional data of the AES-GCM encryption, which binds a ciphertext to
// its resource and data key.
func additionalData(name domain.Name, sealed domain.Sealed) []byte {
	if sealed.Scheme == 0 {
		return []byte(string(name) + "\x00" + sealed.Bound)
	}
	return []byte("anneal sealed value 1\x00" + string(name) + "\x00" + sealed.KeyID)
}

// Encrypt encrypts plain with AES-256-GCM. It returns nonce, ciphertext and tag. Decrypt needs the
// same key and additional data, which are not part of the result.
func Encrypt(key, plain, additional []byte) ([]byte, error) {
	gcm, err := gcmOf(key)
	if err != nil {
		return nil, err
	}
	return gcm.Seal(nil, nil, plain, additional), nil
}

// Decrypt decrypts a result of Encrypt. key and additional must be the same as for Encrypt.
func Decrypt(key, sealed, additional []byte) ([]byte, error) {
	gcm, err := gcmOf(key)
	if err != nil {
		return nil, err
	}
	return gcm.Open(nil, nil, sealed, additional)
}

func gcmOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}
