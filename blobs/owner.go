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

// bucketFile is the key under which SetBucketID stores the random ID of the bucket, by which control
// planes find out whether they have the same bucket.
const bucketFile = "bucket-id"

// Owner returns the ID of the log that claimed the bucket; "" when no log has claimed it.
func (s *Store) Owner(ctx context.Context) (string, error) { return s.label(ctx, ownerFile) }

// Claim records that a log owns the files in the bucket; log is the ID of the log.
func (s *Store) Claim(ctx context.Context, log string) error { return s.setLabel(ctx, ownerFile, log) }

// BucketID returns the random ID of the bucket; "" when it has none.
func (s *Store) BucketID(ctx context.Context) (string, error) { return s.label(ctx, bucketFile) }

// SetBucketID sets the random ID of the bucket.
func (s *Store) SetBucketID(ctx context.Context, id string) error {
	return s.setLabel(ctx, bucketFile, id)
}

func (s *Store) label(ctx context.Context, key string) (string, error) {
	r, err := s.Get(ctx, key)
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

func (s *Store) setLabel(ctx context.Context, key, text string) error {
	_, err := s.Put(ctx, key, strings.NewReader(text+"\n"))
	return err
}
