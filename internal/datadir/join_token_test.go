package datadir

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestJoinTokens(t *testing.T) {
	d := Dir(t.TempDir())
	now := time.Unix(1_900_000_000, 0)
	bound, err := d.JoinToken("n1", now.Add(time.Hour))
	require.NoError(t, err)
	free, err := d.JoinToken("", now.Add(time.Hour))
	require.NoError(t, err)
	key, err := d.Key("nodes")
	require.NoError(t, err)

	token, err := VerifyJoinToken(key, bound, now)
	require.NoError(t, err)
	require.Equal(t, "n1", token.Node)
	other, err := VerifyJoinToken(key, free, now)
	require.NoError(t, err)
	require.Empty(t, other.Node)
	require.NotEqual(t, token.ID, other.ID)

	_, err = VerifyJoinToken(key, bound, now.Add(time.Hour))
	require.ErrorContains(t, err, "expired at 2030-")
	legacy := "ant_n2_" + nodeMAC(key, "node|n2") // as older versions wrote them
	token, err = VerifyJoinToken(key, legacy, now)
	require.NoError(t, err)
	require.Equal(t, domain.LegacyJoinToken, token.ID)
	require.Equal(t, "n2", token.Node)
	for _, forged := range []string{"", "ant_", strings.Replace(bound, "n1", "n2", 1),
		strings.Replace(legacy, "n2", "", 1), "ant__" + bound[7:], bound + "0",
		strings.Replace(bound, "_19", "_29", 1), "ant_n1_x_1_" + nodeMAC(key, "n1")} {
		_, err := VerifyJoinToken(key, forged, now)
		require.Error(t, err, forged)
	}
	_, err = VerifyJoinToken([]byte("another server's key"), bound, now)
	require.Error(t, err)
}
