package oidc_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"anneal/api/oidc"
	"anneal/api/request"
	"anneal/domain"
)

// A fakeProvider is an identity provider without users: the tests sign its tokens.
type fakeProvider struct {
	*httptest.Server
	keys  []jose.JSONWebKey // private keys, the published ones
	down  bool
	reads atomic.Int32 // number of reads of the keys

	metadata map[string]any // replaces parts of the provider's metadata
	redirect string         // if not "", where requests for the metadata are redirected
	grants   string         // the ID token that the provider grants for each code; "" refuses codes
	// began gets an element for each exchange of a code, which then waits for proceed; nil does not
	// wait
	began, proceed chan struct{}
}

func newKey(t testing.TB, id string) jose.JSONWebKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}
}

func newProvider(t testing.TB) *fakeProvider {
	p := &fakeProvider{keys: []jose.JSONWebKey{newKey(t, "a")}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case p.down:
			w.WriteHeader(http.StatusBadGateway)
		case r.URL.Path == "/keys":
			p.reads.Add(1)
			var set jose.JSONWebKeySet
			for _, key := range p.keys {
				set.Keys = append(set.Keys, key.Public())
			}
			_ = json.NewEncoder(w).Encode(set)
		case r.URL.Path == "/token":
			p.exchange(w)
		case p.redirect != "":
			http.Redirect(w, r, p.redirect, http.StatusFound)
		default:
			metadata := map[string]any{"issuer": p.URL, "jwks_uri": p.URL + "/keys",
				"authorization_endpoint": p.URL + "/authorize", "token_endpoint": p.URL + "/token",
				"id_token_signing_alg_values_supported": []string{"ES256", "HS256", "none"}}
			maps.Copy(metadata, p.metadata)
			_ = json.NewEncoder(w).Encode(metadata)
		}
	}))
	t.Cleanup(p.Close)
	return p
}

// exchange responds to a request that exchanges a code.
func (p *fakeProvider) exchange(w http.ResponseWriter) {
	if p.began != nil {
		select {
		case p.began <- struct{}{}:
			<-p.proceed
		case <-p.proceed: // a repetition with the other form of authentication
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if p.grants == "" {
		w.WriteHeader(http.StatusBadRequest)
		_, _ = w.Write([]byte(`{"error": "invalid_grant"}`))
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"access_token": "a", "token_type": "Bearer", "id_token": p.grants})
}

// claims returns the claims of a valid token at the time now, with changes; nil removes a claim.
func (p *fakeProvider) claims(now time.Time, changes map[string]any) map[string]any {
	all := map[string]any{"iss": p.URL, "aud": "anneal", "sub": "1", "email": "ann@example.com", "email_verified": true,
		"groups": []string{"team"}, "iat": now.Unix(), "exp": now.Add(time.Hour).Unix()}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, v any) bool { return v == nil })
	return all
}

func sign(t testing.TB, key jose.JSONWebKey, claims map[string]any) string {
	return signWith(t, key, nil, claims)
}

// signWith is sign with options for the header of the token.
func signWith(t testing.TB, key jose.JSONWebKey, options *jose.SignerOptions, claims map[string]any) string {
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.SignatureAlgorithm(key.Algorithm), Key: key}, options)
	require.NoError(t, err)
	payload, err := json.Marshal(claims)
	require.NoError(t, err)
	signed, err := signer.Sign(payload)
	require.NoError(t, err)
	text, err := signed.CompactSerialize()
	require.NoError(t, err)
	return text
}

// A clock is a time that tests move.
type clock struct{ time.Time }

func (c *clock) now() time.Time { return c.Time }

func verifier(t testing.TB, p *fakeProvider, c *clock, rules ...string) *oidc.Provider {
	o := oidc.Options{Issuer: p.URL, ClientID: "anneal", CLIClientID: "anneal-cli", GroupsClaim: "groups",
		UsernameClaim: "email", Address: "https://anneal.example.com", Key: []byte("key"), Now: c.now,
		Logger: slog.New(slog.DiscardHandler)}
	for _, text := range rules {
		rule, err := oidc.ParseRule(text)
		require.NoError(t, err)
		o.Rules = append(o.Rules, rule)
	}
	return oidc.New(o)
}

var start = time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)

// TestTokens checks which tokens are accepted, and that no error contains the token.
func TestTokens(t *testing.T) {
	p := newProvider(t)
	at := &clock{start}
	v := verifier(t, p, at, "team=accounts/acme:reader", "admins=accounts/acme:admin", "sre=operator")
	stranger := newKey(t, "a")
	unsigned := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none"}`)) + "." +
		base64.RawURLEncoding.EncodeToString([]byte(fmt.Sprintf(`{"iss":%q,"aud":"anneal"}`, p.URL))) + "."
	symmetric := jose.JSONWebKey{Key: []byte(strings.Repeat("k", 32)), KeyID: "a", Algorithm: string(jose.HS256)}
	token := func(changes map[string]any) string { return sign(t, p.keys[0], p.claims(start, changes)) }
	for name, one := range map[string]struct{ token, reason, message string }{
		"valid":               {token(nil), "", ""},
		"of the command line": {token(map[string]any{"aud": "anneal-cli"}), "", ""},
		"several audiences":   {token(map[string]any{"aud": []string{"x", "anneal"}, "azp": "anneal"}), "", ""},
		"group as a text":     {token(map[string]any{"groups": "team"}), "", ""},
		"expired within skew": {token(map[string]any{"exp": start.Add(-20 * time.Second).Unix()}), "", ""},
		"of the near future":  {token(map[string]any{"iat": start.Add(20 * time.Second).Unix()}), "", ""},
		"expired": {token(map[string]any{"exp": start.Add(-31 * time.Second).Unix()}),
			"OIDC_TOKEN_EXPIRED", "log in again"},
		"of the future": {token(map[string]any{"iat": start.Add(31 * time.Second).Unix()}),
			"OIDC_TOKEN_INVALID", "not valid yet"},
		"not before": {token(map[string]any{"nbf": start.Add(31 * time.Second).Unix()}),
			"OIDC_TOKEN_INVALID", "not valid yet"},
		"without end":      {token(map[string]any{"exp": nil}), "OIDC_TOKEN_INVALID", "no expiration time"},
		"another audience": {token(map[string]any{"aud": "other"}), "OIDC_TOKEN_INVALID", "has the audience"},
		"another party":    {token(map[string]any{"azp": "other"}), "OIDC_TOKEN_INVALID", "has the authorized party"},
		"another issuer": {token(map[string]any{"iss": "https://evil.example.com"}),
			"OIDC_TOKEN_INVALID", "has the issuer"},
		"no name": {token(map[string]any{"email": nil}), "OIDC_TOKEN_INVALID", "claim email"},
		"long name": {token(map[string]any{"email": strings.Repeat("a", 129)}),
			"OIDC_TOKEN_INVALID", "claim email"},
		"unverified email": {token(map[string]any{"email_verified": false}), "OIDC_TOKEN_INVALID", "not verified"},
		"large": {token(map[string]any{"x": strings.Repeat("a", 16<<10)}),
			"OIDC_TOKEN_INVALID", "more than the maximum"},
		"forged":      {sign(t, stranger, p.claims(start, nil)), "OIDC_TOKEN_INVALID", "signature"},
		"symmetric":   {sign(t, symmetric, p.claims(start, nil)), "OIDC_TOKEN_INVALID", "algorithm"},
		"unsigned":    {unsigned, "OIDC_TOKEN_INVALID", "algorithm"},
		"unknown key": {sign(t, newKey(t, "b"), p.claims(start, nil)), "OIDC_TOKEN_INVALID", "does not publish"},
		"no token":    {"eyJ.eyJ.x", "OIDC_TOKEN_INVALID", "malformed"},
	} {
		for range 2 { // the second result may be from the cache
			identity, err := v.Verify(t.Context(), one.token)
			if one.reason == "" {
				require.NoError(t, err, name)
				require.Equal(t, "ann@example.com", identity.User)
				require.Equal(t, []request.Grant{{Account: "acme", Role: domain.RoleReader}}, identity.Grants)
				continue
			}
			require.Equal(t, one.reason, request.ReasonOf(err), name)
			require.ErrorContains(t, err, one.message, name)
			require.NotContains(t, err.Error(), one.token, name)
			require.Equal(t, http.StatusUnauthorized, request.HTTPStatus(request.ErrorOf(err)))
		}
	}
}

// TestGrants checks how groups are mapped to accounts and roles.
func TestGrants(t *testing.T) {
	p := newProvider(t)
	v := verifier(t, p, &clock{start}, "a=accounts/acme:reader", "b=accounts/other:user", "c=accounts/acme:admin",
		"CN=x=y=operator")
	for groups, want := range map[string][]request.Grant{
		"":       nil,
		"z":      nil,
		"a":      {{Account: "acme", Role: "reader"}},
		"c,a":    {{Account: "acme", Role: "admin"}},
		"b,a":    {{Account: "acme", Role: "reader"}, {Account: "other", Role: "user"}},
		"CN=x=y": {{Account: "system", Role: "admin"}},
	} {
		identity, err := v.Verify(t.Context(), sign(t, p.keys[0], p.claims(start,
			map[string]any{"groups": strings.Split(groups, ",")})))
		require.NoError(t, err)
		require.Equal(t, want, identity.Grants, groups)
	}
	for text, message := range map[string]string{"a": "must be GROUP=", "=operator": "must be GROUP=",
		"a=acme:admin": "but maps to", "a=accounts/acme:root": "role", "a=accounts/system:admin": "GROUP=operator"} {
		_, err := oidc.ParseRule(text)
		require.ErrorContains(t, err, message, text)
	}
	for _, issuer := range []string{"", "example.com", "http://login.example.com", "https://a@b.example.com",
		"https://login.example.com?x=1"} {
		require.Error(t, oidc.CheckIssuer(issuer), issuer)
	}
	require.NoError(t, oidc.CheckIssuer("https://login.example.com/realms/main"))
	require.NoError(t, oidc.CheckIssuer("http://127.0.0.1:8080"))
}

// TestRotation checks that a new key of the provider is accepted at once, that unknown keys make
// few requests to the provider, and that a removed key ends cached tokens too.
func TestRotation(t *testing.T) {
	p := newProvider(t)
	at := &clock{start}
	v := verifier(t, p, at, "team=accounts/acme:reader")
	old := sign(t, p.keys[0], p.claims(start, nil))
	_, err := v.Verify(t.Context(), old)
	require.NoError(t, err)
	require.EqualValues(t, 1, p.reads.Load())

	for range 100 {
		_, err = v.Verify(t.Context(), sign(t, newKey(t, "stranger"), p.claims(start, nil)))
		require.Equal(t, "OIDC_TOKEN_INVALID", request.ReasonOf(err))
	}
	require.EqualValues(t, 1, p.reads.Load(), "within the pause")

	at.Time = at.Add(time.Minute)
	p.keys = []jose.JSONWebKey{newKey(t, "b")}
	_, err = v.Verify(t.Context(), old)
	require.NoError(t, err, "the keys were not read yet")
	_, err = v.Verify(t.Context(), sign(t, p.keys[0], p.claims(start, nil)))
	require.NoError(t, err)
	require.EqualValues(t, 2, p.reads.Load())
	_, err = v.Verify(t.Context(), old)
	require.Equal(t, "OIDC_TOKEN_INVALID", request.ReasonOf(err))
}

// TestUnreachable checks that tokens get 503 until the provider was reachable, that known keys are
// used while it is not, and for how long.
func TestUnreachable(t *testing.T) {
	p := newProvider(t)
	at := &clock{start}
	v := verifier(t, p, at, "team=accounts/acme:reader")
	day := func(days int) string {
		now := start.AddDate(0, 0, days)
		return sign(t, p.keys[0], p.claims(now, nil))
	}
	p.down = true
	_, err := v.Verify(t.Context(), day(0))
	require.Equal(t, "OIDC_UNAVAILABLE", request.ReasonOf(err))
	require.Equal(t, http.StatusServiceUnavailable, request.HTTPStatus(request.ErrorOf(err)))

	p.down = false
	_, err = v.Verify(t.Context(), day(0))
	require.Equal(t, "OIDC_UNAVAILABLE", request.ReasonOf(err), "within the pause")
	at.Time = at.Add(10 * time.Second)
	_, err = v.Verify(t.Context(), day(0))
	require.NoError(t, err)

	p.down = true
	at.Time = start.Add(30 * time.Minute)
	require.Error(t, v.Refresh(context.Background()))
	_, err = v.Verify(t.Context(), day(0))
	require.NoError(t, err)
	at.Time = start.AddDate(0, 0, 1).Add(time.Minute)
	_, err = v.Verify(t.Context(), day(1))
	require.Equal(t, "OIDC_UNAVAILABLE", request.ReasonOf(err))
}

// TestExpiryOfCachedTokens checks that a cached token ends with its time.
func TestExpiryOfCachedTokens(t *testing.T) {
	p := newProvider(t)
	at := &clock{start}
	v := verifier(t, p, at, "team=accounts/acme:reader")
	text := sign(t, p.keys[0], p.claims(start, nil))
	identity, err := v.Verify(t.Context(), text)
	require.NoError(t, err)
	at.Time = identity.Expires.Add(-time.Second)
	_, err = v.Verify(t.Context(), text)
	require.NoError(t, err)
	at.Time = identity.Expires
	_, err = v.Verify(t.Context(), text)
	require.Equal(t, "OIDC_TOKEN_EXPIRED", request.ReasonOf(err))
}

// BenchmarkVerify measures the cost of a cached token, of every request but the first of a token.
func BenchmarkVerify(b *testing.B) {
	p := newProvider(b)
	v := verifier(b, p, &clock{start}, "team=accounts/acme:reader")
	text := sign(b, p.keys[0], p.claims(start, nil))
	for b.Loop() {
		if _, err := v.Verify(b.Context(), text); err != nil {
			b.Fatal(err)
		}
	}
}
