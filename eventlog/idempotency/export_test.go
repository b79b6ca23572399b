package idempotency

// Kept returns the number and the total bytes of the counted records of a key's account.
func (a *Store) Kept(key string) (count int, bytes int64) {
	a.kept.mu.Lock()
	defer a.kept.mu.Unlock()
	kept := a.kept.of(key)
	return len(kept.responses), kept.bytes
}
