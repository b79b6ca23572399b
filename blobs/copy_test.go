package blobs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

func TestCopy(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		t.Run("bucket "+url, func(t *testing.T) {
			s := open(t, url)
			put := func(key, text string) {
				mustPut(t, s, key, strings.NewReader(text))
			}
			put("uploads/f", "first")
			require.NoError(t, s.Copy(t.Context(), "models/m/f", "uploads/f"))
			require.NoError(t, s.Copy(t.Context(), "models/m/f", "uploads/f"), "copying again is no error")
			put("uploads/f", "second")
			require.Equal(t, "first", content(t, s, "models/m/f"), "a copy does not change with its source")
			require.NoError(t, s.Copy(t.Context(), "models/m/f", "uploads/f"))
			require.Equal(t, "second", content(t, s, "models/m/f"))
			require.NoError(t, s.DeletePrefix(t.Context(), "uploads/"))
			require.Equal(t, "second", content(t, s, "models/m/f"))
			require.Equal(t, domain.NotFound, domain.CodeOf(s.Copy(t.Context(), "models/m/g", "uploads/f")))
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(s.Copy(t.Context(), "../g", "models/m/f")))
			if s.files != nil {
				left := testutil.ReadDir(t, filepath.Join(s.files.dir, staging))
				require.Empty(t, left)
			}
		})
	}
}

func TestRange(t *testing.T) {
	for _, url := range []string{"", "mem://"} {
		s := open(t, url)
		mustPut(t, s, "f", strings.NewReader("0123456789"))
		for _, c := range []struct {
			offset, length int64
			want           string
		}{{0, 3, "012"}, {4, 2, "45"}, {7, -1, "789"}, {8, 100, "89"}, {10, -1, ""}, {2, 0, ""}} {
			r, err := s.Range(t.Context(), "f", c.offset, c.length)
			require.NoError(t, err)
			data := testutil.ReadAll(t, r)
			require.NoError(t, r.Close())
			require.Equal(t, c.want, string(data), "%d+%d", c.offset, c.length)
		}
		_, err := s.Range(t.Context(), "g", 0, 1)
		require.Equal(t, domain.NotFound, domain.CodeOf(err))
	}
}
