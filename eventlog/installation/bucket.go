package installation

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/kv"
)

// A Bucket is an object store's bucket that keeps its own ID in a file bucket-id. blobs.Store
// implements it.
type Bucket interface {
	BucketID(ctx context.Context) (string, error) // BucketID returns the ID in the bucket; "" when it has none.
	// ClaimBucketID stores id unless the bucket has an ID, and returns the ID that the bucket has
	// afterwards.
	ClaimBucketID(ctx context.Context, id string) (string, error)
	SetBucketID(ctx context.Context, id string) error // SetBucketID replaces the ID in the bucket.
}

// CheckBucket returns an error unless bucket is the one that all control planes of the installation
// use. The first control plane of an installation writes a new ID to the bucket and to the record
// of the installation; each later control plane compares the two IDs. url names the bucket in the
// error.
func (m *Membership) CheckBucket(ctx context.Context, bucket Bucket, url string) error {
	return checkBucket(ctx, m.bucket, bucket, url)
}

// CheckBucket checks up to bucketPauses times, with pauses of bucketPause, whether another control
// plane has restored the ID of the bucket.
const (
	bucketPauses = 20
	bucketPause  = 50 * time.Millisecond
)

func checkBucket(ctx context.Context, records kv.Store, bucket Bucket, url string) error {
	written := "" // the ID that this process has written to the bucket
	record, err := update(ctx, records, func(r Record) (*Record, error) {
		if r.Bucket != "" {
			// the record already has the ID of a bucket; compareBucket checks that it is the ID of
			// this bucket
			return nil, nil
		}
		written = nuid.Next()
		id, err := bucket.ClaimBucketID(ctx, written)
		if err != nil {
			return nil, fmt.Errorf("write the ID of the bucket %s: %w", url, err)
		}
		r.Bucket = id
		return &r, nil
	})
	if err != nil {
		return err
	}
	return compareBucket(ctx, record, written, bucket, url)
}

// compareBucket returns an error unless the bucket has the ID of the record. In an object store
// without conditional writes, two control planes that start at the same time can overwrite each
// other's ID. The control plane whose ID is in the record (written) then writes its ID again, and
// the other control plane waits for that.
func compareBucket(ctx context.Context, record Record, written string, bucket Bucket, url string) error {
	for pauses := 0; ; pauses++ {
		id, err := bucket.BucketID(ctx)
		switch {
		case err != nil:
			return fmt.Errorf("read the ID of the bucket %s: %w", url, err)
		case id == record.Bucket:
			return nil
		case written == record.Bucket && pauses == 0:
			if err := bucket.SetBucketID(ctx, written); err != nil {
				return fmt.Errorf("write the ID of the bucket %s: %w", url, err)
			}
		case written == "" || pauses == bucketPauses || !eventlog.Sleep(ctx, bucketPause):
			return &domain.Error{Code: domain.FailedPrecondition, Reason: Reason,
				Message: fmt.Sprintf("the bucket %s is not the one of the installation whose log is in the NATS cluster: its "+
					"file bucket-id has %q instead of %q. All control planes need the same bucket, such as "+
					"--blobs s3://BUCKET?region=R, or --blobs file:///DIR with a directory that their machines share",
					url, id, record.Bucket)}
		}
	}
}

// SetKey sets the fingerprint of the key name in the record of the installation. It is called after
// that key was replaced, while all control planes are stopped. It does nothing when there is no
// record.
func SetKey(ctx context.Context, nc *nats.Conn, name, fingerprint string) error {
	if _, ok, err := Read(ctx, nc); err != nil || !ok {
		return err
	}
	bucket, err := open(ctx, nc, 0)
	if err != nil {
		return err
	}
	_, err = update(ctx, bucket, func(r Record) (*Record, error) {
		if r.Restore != nil {
			return nil, r.Restore.incomplete()
		}
		r.Keys[name] = fingerprint
		return &r, nil
	})
	return err
}
