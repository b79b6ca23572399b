package api

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/oidc"
	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/audit"
)

// identities implements request.Tokens: the holders of tokens by their text.
type identities map[string]*request.Identity

func (i identities) Verify(_ context.Context, token string) (*request.Identity, error) {
	if identity := i[token]; identity != nil {
		return identity, nil
	}
	return nil, &domain.Error{Code: domain.Unauthenticated, Reason: "OIDC_TOKEN_INVALID", Message: "invalid"}
}

// TestUsersWithoutAccountAreRecorded checks that audit records and the log name a user whose token is valid
// but whose groups permit nothing, and that only the operator sees these records.
func TestUsersWithoutAccountAreRecorded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	ends := epoch.Add(time.Hour)
	s.server.core.Tokens = identities{
		"ey.unmapped.x": {User: "nina@example.com", Groups: []string{"others"}, Expires: ends},
		"ey.missing.x":  {User: "gus/x y", Grants: []request.Grant{{Account: "none", Role: domain.RoleUser}}, Expires: ends},
		"ey.mapped.x":   {User: "ann", Grants: []request.Grant{{Account: "acme", Role: domain.RoleReader}}, Expires: ends},
	}
	for _, one := range []struct {
		id, token, path, account, actor, kind, reason string
		status                                        int
	}{
		{"a", "ey.unmapped.x", "/v1/caller", "", "users/nina@example.com", audit.LoginRefused, "OIDC_GROUP_UNMAPPED", 403},
		{"b", "ey.unmapped.x", "/v1/accounts/acme/datasets", "", "users/nina@example.com", audit.RequestRefused,
			"OIDC_GROUP_UNMAPPED", 403},
		{"c", "ey.missing.x", "/v1/caller", "", "users/gus%2Fx%20y", audit.LoginRefused, "OIDC_ACCOUNT_MISSING", 403},
		{"d", "ey.forged.x", "/v1/caller", "", "", audit.LoginRefused, "OIDC_TOKEN_INVALID", 401},
		{"e", "ey.mapped.x", "/v1/caller", "acme", "accounts/acme/users/ann", audit.LoginAccepted, "", 200},
		{"f", "ey.mapped.x", "/v1/accounts", "acme", "accounts/acme/users/ann", audit.RequestRefused, "OPERATOR_ONLY", 403},
	} {
		r := s.request("GET", one.path, "", nil)
		r.Header.Set("Authorization", "Bearer "+one.token)
		r.Header.Set("X-Request-Id", one.id)
		require.Equal(t, one.status, s.send(r).status, one.id)
		found := s.records(allRecords, "operator", `requestId = "`+one.id+`"`)
		require.Len(t, found, 1)
		require.Equal(t, audit.Record{ID: found[0].ID, Time: found[0].Time, Kind: one.kind, Account: one.account,
			Actor: one.actor, ClientAddress: "127.0.0.1", Method: "GET", Operation: found[0].Operation, Path: one.path,
			Status: one.status, Reason: one.reason, RequestID: one.id, ControlPlane: "cp-1"}, found[0])
	}
	require.Len(t, s.records(allRecords, "operator", `actor = "users/nina@example.com"`), 2)
	for _, r := range s.records(acmeRecords, "admin", "") {
		require.Equal(t, "acme", r.Account)
	}
	require.Contains(t, s.logged.String(), "principal=users/nina@example.com")
}

// TestRefusedLoginsOfTheConsole checks that a login which the callback refuses is recorded as such.
func TestRefusedLoginsOfTheConsole(t *testing.T) {
	s := newHarness(t, request.Limits{}).another(func(o *Options) {
		o.Login = oidc.New(oidc.Options{Issuer: "http://127.0.0.1:1", ClientID: "anneal", Address: "http://127.0.0.1",
			Now: o.Now, Logger: o.Logger})
	})
	require.Equal(t, 403, s.call("GET", "/oidc/callback?state=x&code=hidden", "", "").status)
	found := s.records(allRecords, "operator", "kind = LOGIN_REFUSED")
	require.Len(t, found, 1)
	require.Equal(t, []string{"/oidc/callback", "OIDC_LOGIN_REJECTED", ""},
		[]string{found[0].Path, found[0].Reason, found[0].Actor})
}
