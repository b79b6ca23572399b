package blobs

import (
	"context"
	"errors"
	"io"
	"strings"

	"anneal/domain"
)

// ownerFile lies beside Roots and names the log whose events refer to the files.
const ownerFile = "installation"

// Owner is the ID of the log that claimed the bucket; "" when none has.
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

// Claim records the log that the files in the bucket belong to.
func (s *Store) Claim(ctx context.Context, log string) error {
	_, err := s.Put(ctx, ownerFile, strings.NewReader(log+"\n"))
	return err
}
