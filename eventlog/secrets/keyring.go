package secrets

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"

	"anneal/disk"
	"anneal/domain"
)

const keyBytes = 32 // length of an AES-256 key

// A KeyRing has the master keys. The newest key wraps (encrypts) new data keys; each key unwraps
// (decrypts) the data keys that it wrapped. A ring is stored in a file with mode 0600 that has a
// line "ID BASE64" for each key.
type KeyRing struct {
	current string
	keys    map[string][]byte
}

// String returns "[redacted]", so that the keys are not printed by accident.
func (*KeyRing) String() string { return "[redacted]" }

// GoString returns "[redacted]", so that the keys are not printed by accident.
func (*KeyRing) GoString() string { return "[redacted]" }

// Digests applies digest to the master keys, and returns the result for the current key and the
// results for all keys.
func (r *KeyRing) Digests(digest func(key []byte) string) (current string, all []string) {
	for _, key := range r.keys {
		all = append(all, digest(key))
	}
	return digest(r.keys[r.current]), all
}

// OpenKeyRing reads the key ring in the file at path. When the file does not exist, it creates a
// ring with one key. It returns an error when other users can read the file.
func OpenKeyRing(path string) (*KeyRing, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return addKey(path, "")
	}
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot read the key ring file: %v", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the key ring %s has mode %04o, so other users can read it: chmod 600 it, and rotate its key if it was read", path,
			mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot read the key ring file: %v", err)
	}
	return ParseKeyRing(string(text))
}

// RotateKeyRing adds a new master key to the key ring in the file at path. The new key wraps new
// data keys from then on. The older keys are needed until Vault.Rewrap has succeeded.
func RotateKeyRing(path string) (*KeyRing, error) {
	if _, err := OpenKeyRing(path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "cannot read the key ring file: %v", err)
	}
	return addKey(path, strings.TrimRight(string(text), "\n")+"\n")
}

// RetireKeys removes all master keys except the newest from the key ring in the file at path.
func RetireKeys(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "cannot read the key ring file: %v", err)
	}
	ring, err := ParseKeyRing(string(text))
	if err != nil {
		return err
	}
	return disk.WriteFile(path, []byte(ring.current+" "+base64.StdEncoding.EncodeToString(ring.keys[ring.current])+"\n"))
}

func addKey(path, before string) (*KeyRing, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // crypto/rand.Read never returns an error
	text := before + "k" + rand.Text()[:12] + " " + base64.StdEncoding.EncodeToString(key) + "\n"
	ring, err := ParseKeyRing(text)
	if err != nil {
		return nil, err
	}
	return ring, disk.WriteFile(path, []byte(text))
}

// ParseKeyRing parses the text of a key ring, for example from an environment variable. Its errors
// contain line numbers, but no part of the text.
func ParseKeyRing(text string) (*KeyRing, error) {
	ring := &KeyRing{keys: map[string][]byte{}}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, wrongLine(i, "must be an ID, a space and a key")
		}
		key, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(key) != keyBytes {
			return nil, wrongLine(i, fmt.Sprintf("must have a key of %d bytes in base64", keyBytes))
		}
		if ring.keys[fields[0]] != nil {
			return nil, wrongLine(i, "has the same ID as an earlier line")
		}
		ring.current, ring.keys[fields[0]] = fields[0], key
	}
	if ring.current == "" {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the key ring is empty: restore it from a backup or, with several control planes, copy the file of another "+
				"one. Without the file, a single control plane creates a new ring, with which it cannot decrypt the existing "+
				"secrets")
	}
	return ring, nil
}

func wrongLine(i int, rule string) error {
	return domain.Errorf(domain.FailedPrecondition, "line %d of the key ring %s", i+1, rule)
}
