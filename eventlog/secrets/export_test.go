package secrets

import "anneal/eventlog/kv"

// KeyBytes is the length of a key in bytes.
const KeyBytes = keyBytes

// Wrap encrypts a data key with the ring's current master key.
func (v *Vault) Wrap(id string, key []byte) ([]byte, error) { return v.wrap(id, key) }

// Keys returns the key-value store that holds the data keys.
func (v *Vault) Keys() kv.Store { return v.keys }

// Current returns the ID of the master key that wraps new data keys.
func (r *KeyRing) Current() string { return r.current }
