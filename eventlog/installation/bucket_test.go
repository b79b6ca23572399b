package installation

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/kv"
)

// bucket is a Bucket in memory, whose failures a test injects.
type bucket struct {
	mu   sync.Mutex
	id   string
	fail error
	// ignores is true when a claim replaces the ID, as in an object store without conditional writes.
	ignores bool
}

func (b *bucket) BucketID(context.Context) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.id, nil
}

func (b *bucket) ClaimBucketID(_ context.Context, id string) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fail == nil && (b.ignores || b.id == "") {
		b.id = id
	}
	return b.id, b.fail
}

func (b *bucket) SetBucketID(_ context.Context, id string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.id = id
	return nil
}

// A race is a bucket that two control planes claim at the same time. The late one claims it when
// the early one has recorded its ID and has not checked it yet.
type race struct {
	*bucket
	claims, recorded, replaced chan struct{}
}

type early struct{ race }

func (b early) BucketID(ctx context.Context) (string, error) {
	select {
	case <-b.recorded:
	default:
		close(b.recorded)
	}
	<-b.replaced
	return b.bucket.BucketID(ctx)
}

type late struct{ race }

func (b late) ClaimBucketID(ctx context.Context, id string) (string, error) {
	close(b.claims)
	<-b.recorded
	defer close(b.replaced)
	return b.bucket.ClaimBucketID(ctx, id)
}

// TestReplacedBucketID checks that control planes agree although the object store ignores the
// condition of a write, so that the second one has replaced the ID that the first one recorded.
func TestReplacedBucketID(t *testing.T) {
	records := kv.NewMemory()
	r := race{&bucket{ignores: true}, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	second := make(chan error, 1)
	go func() { second <- checkBucket(t.Context(), records, late{r}, "s3://weights") }()
	<-r.claims
	require.NoError(t, checkBucket(t.Context(), records, early{r}, "s3://weights"))
	require.NoError(t, <-second)
	require.NoError(t, checkBucket(t.Context(), records, r.bucket, "s3://weights"), "a restart")
}

// TestOtherBucketIsClaimed checks that a control plane with another bucket is refused even if it
// has already written an ID to its own bucket.
func TestOtherBucketIsClaimed(t *testing.T) {
	records := kv.NewMemory()
	r := race{&bucket{}, make(chan struct{}), make(chan struct{}), make(chan struct{})}
	second := make(chan error, 1)
	other := r
	other.bucket = &bucket{}
	go func() { second <- checkBucket(t.Context(), records, late{other}, "s3://other") }()
	<-r.claims
	require.NoError(t, checkBucket(t.Context(), records, early{r}, "s3://weights"))
	require.ErrorContains(t, <-second, "All control planes need the same bucket")
}

func TestBuckets(t *testing.T) {
	records, shared := kv.NewMemory(), &bucket{}
	check := func(b *bucket) error { return checkBucket(t.Context(), records, b, "s3://weights") }
	require.ErrorContains(t, check(&bucket{fail: errors.New("disk full")}), "disk full")
	require.NoError(t, check(shared))
	require.NotEmpty(t, shared.id)
	require.NoError(t, check(shared), "a restart, or another control plane")
	require.ErrorContains(t, check(&bucket{}), `bucket-id has "" instead of "`+shared.id)
	require.ErrorContains(t, check(&bucket{id: "other"}), "All control planes need the same bucket")

	// Control planes that start at the same time agree on the ID of the bucket.
	for range 500 {
		records, shared = kv.NewMemory(), &bucket{}
		var all sync.WaitGroup
		var errs [4]error
		for i := range errs {
			all.Go(func() { errs[i] = check(shared) })
		}
		all.Wait()
		require.NoError(t, errors.Join(errs[:]...))
		require.NoError(t, check(shared))
	}
}
