package blobs

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"

	"anneal/domain"
)

// ownerFile is the key under which Claim stores the ID of the log that owns the files in the
// bucket. It is not below any of the Roots.
const ownerFile = "installation"

// bucketFile is the key under which ClaimBucketID stores the random ID of the bucket. Control
// planes compare it to verify that they use the same bucket.
const bucketFile = "bucket-id"

// Owner returns the ID of the log that claimed the bucket; "" when no log has claimed it.
func (s *Store) Owner(ctx context.Context) (string, error) { return label(ctx, s, ownerFile) }

// Claim records that the log with this ID owns the files in the bucket.
func (s *Store) Claim(ctx context.Context, log string) error {
	_, err := s.Put(ctx, ownerFile, strings.NewReader(log+"\n"))
	return err
}

// RestoredOwner returns the owner of a bucket to which a backup of the log with this ID is restored.
// The restored installation replaces it by Claim.
func RestoredOwner(log string) string { return "restored " + log }

// BucketID returns the random ID of the bucket; "" when it has none.
func (s *Store) BucketID(ctx context.Context) (string, error) { return label(ctx, s, bucketFile) }

// ClaimBucketID stores id as the ID of the bucket unless the bucket has one, and returns the ID that
// the bucket then has. Callers that claim a bucket at the same time get the same ID, unless the object
// store ignores the condition of the write.
func (s *Store) ClaimBucketID(ctx context.Context, id string) (string, error) {
	failure := s.Create(ctx, bucketFile, []byte(id+"\n"))
	stored, err := s.BucketID(ctx)
	if err == nil && stored == "" {
		err = explainCondition(failure)
	}
	return stored, err
}

// explainCondition returns an error with advice if err is a response with status 501 to a
// conditional write, and otherwise err.
func explainCondition(err error) error {
	var status interface{ HTTPStatusCode() int }
	if !errors.As(err, &status) || status.HTTPStatusCode() != http.StatusNotImplemented {
		return err
	}
	return domain.Errorf(domain.FailedPrecondition, "anneal needs conditional writes (PutObject with If-None-Match), "+
		"which the bucket's object store does not implement: use a bucket in another object store, or another version of it")
}

// SetBucketID replaces the ID of the bucket.
func (s *Store) SetBucketID(ctx context.Context, id string) error {
	_, err := s.Put(ctx, bucketFile, strings.NewReader(id+"\n"))
	return err
}

func label(ctx context.Context, s *Store, key string) (string, error) {
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
