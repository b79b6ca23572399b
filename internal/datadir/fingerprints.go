package datadir

import (
	"encoding/hex"
	"errors"
	"os"
	"strings"

	"anneal/eventlog/installation"
	"anneal/eventlog/secrets"
)

// RingKey is the name of the ring of master keys in the record of an installation.
const RingKey = "ring"

// RingFingerprint returns the fingerprint of a master key.
func RingFingerprint(key []byte) string { return installation.Fingerprint(RingKey, key) }

// Fingerprints returns the fingerprints of the keys in the directory by name of the key, for the
// record of an installation: current has those that a new record gets, and accepted, for
// installation.Record.Check, also those of earlier master keys. Fingerprints creates no key.
func (d Dir) Fingerprints() (current map[string]string, accepted map[string][]string, err error) {
	current, accepted = map[string]string{}, map[string][]string{}
	for _, name := range SharedKeys {
		text, err := os.ReadFile(d.Path("keys", name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, nil, err
		}
		// ignore the error: Dir.Key reports a damaged key when the server starts
		key, _ := hex.DecodeString(strings.TrimSpace(string(text)))
		current[name] = installation.Fingerprint(name, key)
		accepted[name] = []string{current[name]}
	}
	if _, err := os.Stat(d.RingPath()); errors.Is(err, os.ErrNotExist) {
		return current, accepted, nil
	}
	ring, err := secrets.OpenKeyRing(d.RingPath())
	if err == nil {
		current[RingKey], accepted[RingKey] = ring.Digests(RingFingerprint)
	}
	return current, accepted, err
}
