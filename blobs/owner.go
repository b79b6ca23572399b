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

// bucketFile is the key under which ClaimBucketID stores the random ID of the bucket, by which control
// planes find out whether they have the same bucket.
const bucketFile = "bucket-id"

// Owner returns the ID of the log that claimed the bucket; "" when no log has claimed it.
func (s *Store) Owner(ctx context.Context) (string, error) { return s.label(ctx, ownerFile) }

// Claim records that a log owns the files in the bucket; log is the ID of the log.
func (s *Store) Claim(ctx context.Context, log string) error { return s.setLabel(ctx, ownerFile, log) }

// BucketID returns the random ID of the bucket; "" when it has none.
func (s *Store) BucketID(ctx context.Context) (string, error) { return s.label(ctx, bucketFile) }

// ClaimBucketID stores id as the ID of the bucket unless the bucket has one, and returns the ID that
// the bucket then has. Callers that claim a bucket at the same time get the same ID.
func (s *Store) ClaimBucketID(ctx context.Context, id string) (string, error) {
	failure := s.create(ctx, bucketFile, strings.NewReader(id+"\n"))
	stored, err := s.BucketID(ctx)
	if err == nil && stored == "" {
		err = failure
	}
	return stored, err
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
