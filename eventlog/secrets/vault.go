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
	"time"

	"github.com/google/uuid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/kv"
)

// MaxSealed is how many bytes a sealed value may have.
const MaxSealed = 64 << 10

// A Vault seals values that must be deletable although the log is not. Each
// value has a data key of its own: the ciphertext goes into an event, the data
// key, wrapped by the ring, into a bucket where it can be deleted, and with it
// the value.
type Vault struct {
	ring *KeyRing
	keys kv.Store
}

// NewMemoryVault forgets everything with the process: for tests.
func NewMemoryVault() *Vault {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)
	return &Vault{&KeyRing{"memory", map[string][]byte{"memory": key}}, kv.NewMemory()}
}

// A wrappedKey is a data key as the bucket has it.
type wrappedKey struct {
	Ring    string `json:"ring"` // id of the key that wraps it
	Wrapped []byte `json:"wrapped"`
}

// Seal encrypts a value of a resource. It can be opened only for the same
// resource and with the same data key.
func (v *Vault) Seal(ctx context.Context, name domain.Name, value []byte) (domain.Sealed, error) {
	if len(value) > MaxSealed {
		return domain.Sealed{}, domain.Errorf(domain.InvalidArgument, "a secret value has %d bytes: at most %d are kept", len(value), MaxSealed)
	}
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key)     // never fails
	made, err := uuid.NewV7() // its time is the age of the key
	if err != nil {
		return domain.Sealed{}, err
	}
	sealed := domain.Sealed{KeyID: made.String(), Scheme: domain.SealScheme}
	if sealed.Ciphertext, err = Encrypt(key, value, boundTo(name, sealed)); err != nil {
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

// Open decrypts what Seal made. NotFound: it was shredded. DataLoss: it is not
// this resource's, or was changed. FailedPrecondition: the ring lacks its key.
func (v *Vault) Open(ctx context.Context, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error) {
	key, _, err := v.dataKey(ctx, sealed.KeyID)
	if err != nil {
		return "", err
	}
	if sealed.Scheme > domain.SealScheme {
		return "", domain.Errorf(domain.FailedPrecondition, "the value of %s uses encryption scheme %d, and this release supports schemes up to %d: upgrade anneal, or set the value again", name, sealed.Scheme, domain.SealScheme)
	}
	value, err := Decrypt(key, sealed.Ciphertext, boundTo(name, sealed))
	if err != nil {
		return "", domain.Errorf(domain.DataLoss, "the sealed value of %s was not sealed for this resource, or was changed: set it again", name)
	}
	return domain.SecretValue(value), nil
}

// ownerID is the id under which the key store has the ID of its log.
const ownerID = "installation"

// Owner is the ID of the log that claimed the vault; "" when none has.
func (v *Vault) Owner(ctx context.Context) (string, error) {
	record, _, err := v.keys.Get(ctx, ownerID)
	return string(record), err
}

// Claim records the log whose events refer to the data keys.
func (v *Vault) Claim(ctx context.Context, log string) error {
	_, revision, err := v.keys.Get(ctx, ownerID)
	if err == nil {
		_, err = v.keys.Put(ctx, ownerID, []byte(log), revision)
	}
	if errors.Is(err, eventlog.ErrConflict) {
		return nil // somebody else claimed it: see Owner
	}
	return err
}

// ids are the IDs of all data keys.
func (v *Vault) ids(ctx context.Context) ([]string, error) {
	ids, err := v.keys.Keys(ctx)
	return slices.DeleteFunc(ids, func(id string) bool { return id == ownerID }), err
}

// DataKeys yields the IDs of all data keys, and when each was made. That of a
// key of an earlier version of anneal is zero: its ID does not tell.
func (v *Vault) DataKeys(ctx context.Context) iter.Seq2[DataKey, error] {
	return func(yield func(DataKey, error) bool) {
		ids, err := v.ids(ctx)
		if err != nil {
			yield(DataKey{}, err)
			return
		}
		for _, id := range ids {
			if !yield(DataKey{id, madeAt(id)}, nil) {
				return
			}
		}
	}
}

// A DataKey is the place of one data key in the vault.
type DataKey struct {
	ID   string
	Time time.Time // when it was made; zero when that is not known
}

func madeAt(id string) time.Time {
	parsed, err := uuid.Parse(id)
	if err != nil || parsed.Version() != 7 {
		return time.Time{}
	}
	return time.Unix(parsed.Time().UnixTime()).UTC()
}

// Shred erases a data key, so that what it sealed is gone wherever it was
// copied to. It is done when it returns; again is no error. The reconciler alone
// calls it: what the log may still refer to must not be erased.
func (v *Vault) Shred(ctx context.Context, keyID string) error {
	if !plainID(keyID) {
		return nil // no key ever had this id
	}
	return v.keys.Delete(ctx, keyID)
}

// Rewrap wraps every data key by the ring's current key and answers how many
// had another. Afterwards the other keys can be taken out of the ring.
func (v *Vault) Rewrap(ctx context.Context) (changed int, err error) {
	ids, err := v.ids(ctx)
	if err != nil {
		return 0, err
	}
	for _, id := range ids {
		key, revision, err := v.dataKey(ctx, id)
		if domain.CodeOf(err) == domain.NotFound {
			continue // shredded meanwhile
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
			continue // shredded or rewrapped meanwhile
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
		return nil, found, domain.Errorf(domain.NotFound, "the sealed value names no data key: set it again")
	}
	record, revision, err := v.keys.Get(ctx, id)
	if err != nil {
		return nil, found, err
	}
	if revision == 0 {
		return nil, found, domain.Errorf(domain.NotFound, "the sealed value was deleted: its data key is gone")
	}
	found.number = revision
	if err := json.Unmarshal(record, &found.wrappedKey); err != nil {
		return nil, found, domain.Errorf(domain.DataLoss, "the record of data key %s cannot be read", id)
	}
	wrapping := v.ring.keys[found.Ring]
	if wrapping == nil {
		return nil, found, domain.Errorf(domain.FailedPrecondition, "the key ring lacks key %q, which wraps data key %s: put it back", found.Ring, id)
	}
	key, err := Decrypt(wrapping, found.Wrapped, []byte(id))
	if err != nil {
		return nil, found, domain.Errorf(domain.DataLoss, "data key %s cannot be unwrapped: key %q of the ring is another one than it was", id, found.Ring)
	}
	return key, found, nil
}

// CheckRing refuses, FailedPrecondition, a key ring that lacks a key which wraps
// data keys, or has another one under its ID.
func (v *Vault) CheckRing(ctx context.Context) error {
	ids, err := v.ids(ctx)
	if err != nil {
		return err
	}
	tried := map[string]bool{} // by ID of the ring's key
	for _, id := range ids {
		record, revision, err := v.keys.Get(ctx, id)
		var wrapped wrappedKey
		if err != nil || revision == 0 || json.Unmarshal(record, &wrapped) != nil || tried[wrapped.Ring] {
			continue // told when it is opened
		}
		tried[wrapped.Ring] = true
		if _, _, err := v.dataKey(ctx, id); err != nil {
			return domain.Errorf(domain.FailedPrecondition, "the key ring is damaged (%v): restore keys/ring from a backup; "+
				"or, to give up the values sealed so far, move keys/ring and the folder datakeys away", err)
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

// boundTo is the additional data that ties a ciphertext to its place.
func boundTo(name domain.Name, sealed domain.Sealed) []byte {
	if sealed.Scheme == 0 {
		return []byte(string(name) + "\x00" + sealed.Bound)
	}
	return []byte("anneal sealed value 1\x00" + string(name) + "\x00" + sealed.KeyID)
}

// Encrypt is AES-256-GCM: nonce, ciphertext and tag in one. What it answers is
// opened only with the same key and the same belonging, which is not kept in it.
func Encrypt(key, plain, belonging []byte) ([]byte, error) {
	gcm, err := gcmOf(key)
	if err != nil {
		return nil, err
	}
	return gcm.Seal(nil, nil, plain, belonging), nil
}

// Decrypt opens what Encrypt made.
func Decrypt(key, sealed, belonging []byte) ([]byte, error) {
	gcm, err := gcmOf(key)
	if err != nil {
		return nil, err
	}
	return gcm.Open(nil, nil, sealed, belonging)
}

func gcmOf(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	return cipher.NewGCMWithRandomNonce(block)
}
