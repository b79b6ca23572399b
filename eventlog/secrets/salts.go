package secrets

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/eventlog"
)

// saltPrefix is the prefix of the IDs of salt key records. It is followed by the account.
const saltPrefix = "salt-"

// A saltRecord is the stored form of an account's salt key.
type saltRecord struct{ wrappedKey }

// A SaltStore stores the salt keys of accounts beside the data keys of a vault.
type SaltStore struct{ vault *Vault }

// Salts returns the SaltStore of the vault.
func (v *Vault) Salts() SaltStore { return SaltStore{v} }

// SaltKey returns the salt key of an account. It creates the key if there is none; when several
// control planes do so concurrently, all return the same key.
func (s SaltStore) SaltKey(ctx context.Context, account string) ([]byte, error) {
	for {
		found, revision, err := s.read(ctx, saltPrefix+account)
		if err != nil || revision > 0 {
			return found, err
		}
		if err := s.write(ctx, saltPrefix+account, newSaltKey(), 0); err != nil && !errors.Is(err, eventlog.ErrConflict) {
			return found, err
		}
	}
}

func newSaltKey() []byte {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // crypto/rand.Read never returns an error
	return key
}

func (s SaltStore) read(ctx context.Context, id string) (key []byte, revision uint64, err error) {
	record, revision, err := s.vault.keys.Get(ctx, id)
	if err != nil || revision == 0 {
		return nil, 0, err
	}
	var found saltRecord
	if err := json.Unmarshal(record, &found); err != nil {
		return nil, 0, domain.Errorf(domain.DataLoss, "cannot parse the record %s of the key store: restore the directory "+
			"datakeys from a backup", id)
	}
	wrapping := s.vault.ring.keys[found.Ring]
	if wrapping == nil {
		return nil, 0, domain.Errorf(domain.FailedPrecondition,
			"the key ring lacks the master key %q, which wraps the salt key %s: restore the key ring from a "+
				"backup", found.Ring, id)
	}
	if key, err = Decrypt(wrapping, found.Wrapped, []byte(id)); err != nil {
		return nil, 0, domain.Errorf(domain.DataLoss, "cannot unwrap the salt key %s, because master key %q of the key "+
			"ring was replaced: restore the key ring from a backup", id, found.Ring)
	}
	return key, revision, nil
}

func (s SaltStore) write(ctx context.Context, id string, key []byte, revision uint64) error {
	ring := s.vault.ring
	wrapped, err := Encrypt(ring.keys[ring.current], key, []byte(id))
	if err != nil {
		return err
	}
	record, err := json.Marshal(saltRecord{wrappedKey{ring.current, wrapped}})
	if err != nil {
		return err
	}
	_, err = s.vault.keys.Put(ctx, id, record, revision)
	return err
}

// rewrap wraps every salt key with the current master key of the ring.
func (s SaltStore) rewrap(ctx context.Context) error {
	ids, err := s.vault.keys.Keys(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.DeleteFunc(ids, func(id string) bool { return !strings.HasPrefix(id, saltPrefix) }) {
		record, _, err := s.vault.keys.Get(ctx, id)
		var found saltRecord
		if err == nil && json.Unmarshal(record, &found) == nil && found.Ring == s.vault.ring.current {
			continue
		}
		key, revision, err := s.read(ctx, id)
		if err == nil {
			err = s.write(ctx, id, key, revision)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
