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

// Intercept sets the function that is called for each change of the bucket for the restored files.
func (s *RestoreSettings) Intercept(f func(change, key string, do func() error) error) {
	s.intercept = f
}
