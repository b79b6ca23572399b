package backup

// Functions, for tests.
var (
	Lines       = lines
	PutManifest = putManifest
)

// SetPruning sets the target from which a service removes backups.
func (s *Service) SetPruning(target string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pruning = target
}
