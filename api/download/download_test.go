package download

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/outbound"
)

// TestRedirectsAreChecked checks that a fetcher rejects a redirect of a public server to a private
// address.
func TestRedirectsAreChecked(t *testing.T) {
	from := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "/speech.wav", http.StatusFound)
	}))
	t.Cleanup(from.Close)
	f := New(time.Minute, false, nil, "upload the file")
	dial := f.client.Transport.(*http.Transport).DialContext
	first := true
	f.client.Transport.(*http.Transport).DialContext = func(
		ctx context.Context, network, address string,
	) (net.Conn, error) {
		if first { // as if the first address were public
			first = false
			return outbound.Dialer(true)(ctx, network, address)
		}
		return dial(ctx, network, address)
	}
	_, _, err := f.Get(t.Context(), from.URL+"/hops/0")
	require.ErrorIs(t, err, errPrivate)
	require.False(t, first)
}
