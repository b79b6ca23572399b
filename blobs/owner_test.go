package blobs

import (
	"fmt"
	"net/url"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
	"anneal/domain"
)

// bucketURL returns the URL of a server's bucket, and sets its credentials.
func bucketURL(t *testing.T, s *s3test.Server) string {
	t.Setenv("AWS_ACCESS_KEY_ID", s.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s.SecretKey)
	return "s3://" + s.Bucket + "?" + url.Values{"endpoint": {s.URL}, "region": {"us-east-1"},
		"use_path_style": {"true"}}.Encode()
}

// TestClaimBucketIDWithoutConditions claims buckets of object stores without conditional writes.
func TestClaimBucketIDWithoutConditions(t *testing.T) {
	refuses := s3test.Start(t)
	refuses.RefusesConditions = true
	_, err := open(t, bucketURL(t, refuses)).ClaimBucketID(t.Context(), "a")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err), "%v", err)
	require.ErrorContains(t, err, "anneal needs conditional writes")
	require.Empty(t, refuses.Objects())

	ignores := s3test.Start(t)
	ignores.IgnoresConditions = true
	store := open(t, bucketURL(t, ignores))
	for _, id := range []string{"a", "b"} {
		claimed, err := store.ClaimBucketID(t.Context(), id)
		require.NoError(t, err)
		require.Equal(t, id, claimed, "the store replaces the ID")
	}
	require.NoError(t, store.SetBucketID(t.Context(), "a"))
	id, err := store.BucketID(t.Context())
	require.NoError(t, err)
	require.Equal(t, "a", id)
}

func TestClaimBucketID(t *testing.T) {
	at := bucketURL(t, s3test.Start(t))
	for name, bucket := range map[string]string{"directory": "file://" + t.TempDir(), "memory": "mem://", "S3": at} {
		t.Run(name, func(t *testing.T) {
			one := open(t, bucket)
			other := one
			if name != "memory" { // each mem:// URL is a new bucket
				other = open(t, bucket)
			}
			id, err := one.BucketID(t.Context())
			require.NoError(t, err)
			require.Empty(t, id)
			var all sync.WaitGroup
			var ids [8]string
			var errs [8]error
			for i := range ids {
				store := one
				if i%2 == 1 {
					store = other
				}
				all.Go(func() { ids[i], errs[i] = store.ClaimBucketID(t.Context(), fmt.Sprint("id", i)) })
			}
			all.Wait()
			for i := range ids {
				require.NoError(t, errs[i])
				require.Regexp(t, `^id[0-7]$`, ids[i])
				require.Equal(t, ids[0], ids[i])
			}
			id, err = other.BucketID(t.Context())
			require.NoError(t, err)
			require.Equal(t, ids[0], id)
		})
	}
}

func TestClaimBucketIDFails(t *testing.T) {
	s, err := Open(t.Context(), Options{Dir: t.TempDir(), BaseURL: "http://127.0.0.1:1/blobs",
		Key: []byte("0123456789abcdef"), Intercept: func(string, string, func() error) error {
			return domain.Errorf(domain.ResourceExhausted, "disk full")
		}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.ClaimBucketID(t.Context(), "id")
	require.ErrorContains(t, err, "disk full")
}
