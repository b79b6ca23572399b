package secrets

import "anneal/eventlog/kv"

// KeyBytes is how long a key is.
const KeyBytes = keyBytes

// Wrap wraps a data key by the ring's current key.
func (v *Vault) Wrap(id string, key []byte) ([]byte, error) { return v.wrap(id, key) }

// Keys is the store of data keys.
func (v *Vault) Keys() kv.Store { return v.keys }

// Current is the ID of the key that wraps.
func (r *KeyRing) Current() string { return r.current }
