package server

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestOIDCFlags checks which combinations of flags are valid.
func TestOIDCFlags(t *testing.T) {
	valid := []string{"--oidc-issuer", "https://login.example.com", "--oidc-client-id", "anneal", "--oidc-group",
		"team=accounts/acme:user"}
	for _, one := range []struct {
		args    []string
		message string
	}{
		{nil, ""},
		{valid, ""},
		{[]string{"--oidc-client-id", "anneal"}, "--oidc-client-id requires --oidc-issuer"},
		{valid[:2], "--oidc-issuer requires --oidc-client-id"},
		{valid[:4], "--oidc-issuer requires --oidc-group"},
		{append(valid, "--oidc-issuer", "http://login.example.com"), "must begin with https://"},
		{append(valid, "--oidc-group", "team=acme"), `--oidc-group "team=acme" must be GROUP=accounts/ACCOUNT:ROLE`},
		{append(valid, "--oidc-username-claim", ""), "must not be empty"},
	} {
		var flags Flags
		f := pflag.NewFlagSet("serve", pflag.ContinueOnError)
		flags.Add(f)
		require.NoError(t, f.Parse(one.args))
		if err := flags.Check(); one.message == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, one.message)
		}
	}

	file := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(file, []byte("s3cret\n"), 0o600))
	flags := oidcFlags{issuer: valid[1], clientID: "anneal", secretFile: file, groups: []string{"a=operator"}}
	options, err := flags.options()
	require.NoError(t, err)
	require.Equal(t, "s3cret", options.Secret)
	flags.secretFile += ".none"
	_, err = flags.options()
	require.ErrorContains(t, err, "--oidc-client-secret-file")
	require.Equal(t, CheckFailed, checkLogin(t.Context(), Flags{oidc: flags}).Result)
	require.Equal(t, CheckSkipped, checkLogin(t.Context(), Flags{}).Result)
	flags = oidcFlags{issuer: "http://127.0.0.1:1", clientID: "anneal"}
	require.Equal(t, CheckFailed, checkLogin(t.Context(), Flags{oidc: flags}).Result, "nothing listens there")
}
