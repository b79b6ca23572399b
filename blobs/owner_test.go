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

func TestClaimBucketID(t *testing.T) {
	s3 := s3test.Start(t)
	t.Setenv("AWS_ACCESS_KEY_ID", s3.AccessKeyID)
	t.Setenv("AWS_SECRET_ACCESS_KEY", s3.SecretKey)
	at := "s3://" + s3.Bucket + "?" + url.Values{"endpoint": {s3.URL}, "region": {"us-east-1"},
		"use_path_style": {"true"}}.Encode()
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
