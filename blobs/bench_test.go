package blobs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func benchStore(b *testing.B) *Store {
	s, err := Open(b.Context(),
		Options{Dir: b.TempDir(), BaseURL: "http://127.0.0.1:1/blobs", Key: []byte("0123456789abcdef")})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	return s
}

// BenchmarkFiles measures how fast files are stored and read.
func BenchmarkFiles(b *testing.B) {
	for _, size := range []int{4 << 10, 1 << 20, 64 << 20} {
		content := make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte{}).Read(content)
		b.Run(fmt.Sprintf("put/%dKiB", size>>10), func(b *testing.B) {
			s, i := benchStore(b), 0
			b.SetBytes(int64(size))
			for b.Loop() {
				i++
				key := fmt.Sprintf("models/acme/%d/w", i)
				mustPut(b, s, key, bytes.NewReader(content))
				b.StopTimer()
				require.NoError(b, s.Delete(b.Context(), key))
				b.StartTimer()
			}
		})
		b.Run(fmt.Sprintf("get/%dKiB", size>>10), func(b *testing.B) {
			s := benchStore(b)
			mustPut(b, s, "models/acme/1/w", bytes.NewReader(content))
			b.SetBytes(int64(size))
			for b.Loop() {
				r, err := s.Get(b.Context(), "models/acme/1/w")
				require.NoError(b, err)
				_, err = io.Copy(io.Discard, r)
				require.NoError(b, err)
				require.NoError(b, r.Close())
			}
		})
	}
}

// BenchmarkDownload measures how fast an agent downloads a file: through a signed URL, hashing the
// content.
func BenchmarkDownload(b *testing.B) {
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	b.Cleanup(server.Close)
	s, err := Open(b.Context(), Options{Dir: b.TempDir(), BaseURL: server.URL + "/blobs", Key: []byte("0123456789abcdef")})
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, s.Close()) })
	mux.Handle("/blobs/", s.Handler())
	content := make([]byte, 64<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(content)
	mustPut(b, s, "models/acme/1/w", bytes.NewReader(content))
	link, err := s.SignGet(b.Context(), "models/acme/1/w", time.Hour)
	require.NoError(b, err)
	b.SetBytes(int64(len(content)))
	for b.Loop() {
		res, err := http.Get(link)
		require.NoError(b, err)
		n, err := io.Copy(sha256.New(), res.Body)
		require.NoError(b, err)
		require.EqualValues(b, len(content), n)
		require.NoError(b, res.Body.Close())
	}
}
