package blobs

import (
	"context"
	"errors"
	"io"
	"strings"

	"anneal/domain"
)

// ownerFile is the key under which Claim stores the ID of the log that owns the files. It is not
// below any of the Roots.
const ownerFile = "installation"

// Owner returns the ID of the log that claimed the bucket; "" when no log has claimed it.
func (s *Store) Owner(ctx context.Context) (string, error) {
	r, err := s.Get(ctx, ownerFile)
	if domain.CodeOf(err) == domain.NotFound {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	const limit = 1 << 10
	text, err := io.ReadAll(io.LimitReader(r, limit))
	return strings.TrimSpace(string(text)), errors.Join(err, r.Close())
}

// Claim records that a log owns the files in the bucket; log is the ID of the log.
func (s *Store) Claim(ctx context.Context, log string) error {
	_, err := s.Put(ctx, ownerFile, strings.NewReader(log+"\n"))
	return err
}
