package idempotency

import "anneal/eventlog/kv"

// Kept is how many records are counted of a key's account, and their bytes.
func (a *Store) Kept(key string) (count int, bytes int64) {
	a.kept.mu.Lock()
	defer a.kept.mu.Unlock()
	kept := a.kept.of(key)
	return len(kept.answers), kept.bytes
}

// Records is the store behind the claims.
func (a *Store) Records() kv.Store { return a.records }
