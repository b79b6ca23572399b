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

const keyBytes = 32 // AES-256

// A KeyRing holds the key-encryption keys: the last one wraps, all unwrap. As
// text it is one key a line, "id base64": a file of mode 0600.
type KeyRing struct {
	current string
	keys    map[string][]byte
}

// String hides the keys.
func (*KeyRing) String() string { return "[redacted]" }

// GoString hides them too.
func (*KeyRing) GoString() string { return "[redacted]" }

// OpenKeyRing reads the ring at path, or makes one with a first key. It
// refuses a file that others may read.
func OpenKeyRing(path string) (*KeyRing, error) {
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return addKey(path, "")
	}
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the key ring cannot be read: %v", err)
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "the key ring %s has mode %04o, so others may read it: chmod 600 it, and rotate its key if somebody did", path, mode)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the key ring cannot be read: %v", err)
	}
	return ParseKeyRing(string(text))
}

// RotateKeyRing adds a key to the ring at path; it wraps from now on. Let the
// vault Rewrap before the others are taken out.
func RotateKeyRing(path string) (*KeyRing, error) {
	if _, err := OpenKeyRing(path); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "the key ring cannot be read: %v", err)
	}
	return addKey(path, strings.TrimRight(string(text), "\n")+"\n")
}

// RetireKeys takes all keys but the newest out of the ring at path.
func RetireKeys(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return domain.Errorf(domain.FailedPrecondition, "the key ring cannot be read: %v", err)
	}
	ring, err := ParseKeyRing(string(text))
	if err != nil {
		return err
	}
	return disk.WriteFile(path, []byte(ring.current+" "+base64.StdEncoding.EncodeToString(ring.keys[ring.current])+"\n"))
}

func addKey(path, before string) (*KeyRing, error) {
	key := make([]byte, keyBytes)
	_, _ = rand.Read(key) // never fails
	text := before + "k" + rand.Text()[:12] + " " + base64.StdEncoding.EncodeToString(key) + "\n"
	ring, err := ParseKeyRing(text)
	if err != nil {
		return nil, err
	}
	return ring, disk.WriteFile(path, []byte(text))
}

// ParseKeyRing reads a ring from its text, as an environment may hold it. Its
// errors name a line, never what is on it.
func ParseKeyRing(text string) (*KeyRing, error) {
	ring := &KeyRing{keys: map[string][]byte{}}
	for i, line := range strings.Split(text, "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, wrongLine(i, "must be an id, a space and a key")
		}
		key, err := base64.StdEncoding.DecodeString(fields[1])
		if err != nil || len(key) != keyBytes {
			return nil, wrongLine(i, fmt.Sprintf("must have a key of %d bytes in base64", keyBytes))
		}
		if ring.keys[fields[0]] != nil {
			return nil, wrongLine(i, "has an id that stands above already")
		}
		ring.current, ring.keys[fields[0]] = fields[0], key
	}
	if ring.current == "" {
		return nil, domain.Errorf(domain.FailedPrecondition, "the key ring is empty: put back the one that was there, or delete the file to begin anew without the secrets sealed so far")
	}
	return ring, nil
}

func wrongLine(i int, rule string) error {
	return domain.Errorf(domain.FailedPrecondition, "line %d of the key ring %s", i+1, rule)
}
