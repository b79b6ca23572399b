package oidc_test

import (
	"encoding/base64"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"anneal/api/oidc"
	"anneal/api/request"
)

// serve responds to a request with an operation of the login, as the server does.
func serve(v *oidc.Provider, method, target string, header http.Header) *http.Response {
	r := httptest.NewRequest(method, target, nil)
	maps.Copy(r.Header, header)
	w := httptest.NewRecorder()
	at := slices.IndexFunc(v.Operations(), func(op request.Operation) bool { return op.Path == r.URL.Path })
	op := v.Operations()[at]
	c := &request.Call{Core: &request.Core{Logger: v.Logger}, Operation: &op, Writer: w, Request: r, Ctx: r.Context(),
		ID: "request-1"}
	if _, err := op.Handle(c); err != nil {
		request.WriteError(w, request.ErrorOf(err), c.ID, false)
	}
	return w.Result()
}

func text(t *testing.T, response *http.Response) string {
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}

// begin begins a login, and returns its cookie and the URL of the provider.
func begin(t *testing.T, v *oidc.Provider) (*http.Cookie, *url.URL) {
	response := serve(v, "GET", "/oidc/login", nil)
	require.Equal(t, http.StatusFound, response.StatusCode)
	require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
	require.Len(t, response.Cookies(), 1)
	at, err := response.Location()
	require.NoError(t, err)
	return response.Cookies()[0], at
}

// TestCookie checks the attributes of the cookie, with TLS and without.
func TestCookie(t *testing.T) {
	p := newProvider(t)
	v := verifier(t, p, &clock{start}, "team=accounts/acme:user")
	cookie, at := begin(t, v)
	require.Equal(t, "__Host-anneal-login", cookie.Name)
	require.Equal(t, "/", cookie.Path)
	require.Empty(t, cookie.Domain)
	require.True(t, cookie.Secure)
	require.True(t, cookie.HttpOnly)
	require.Equal(t, http.SameSiteLaxMode, cookie.SameSite)
	require.Equal(t, 600, cookie.MaxAge)
	require.Equal(t, "S256", at.Query().Get("code_challenge_method"))
	require.Equal(t, "https://anneal.example.com/oidc/callback", at.Query().Get("redirect_uri"))
	for _, parameter := range []string{"state", "nonce", "code_challenge"} {
		require.GreaterOrEqual(t, len(at.Query().Get(parameter)), 26, parameter)
	}
	for renew, kept := range map[string]bool{"a-1": true, "A": false, `"><script>`: false,
		strings.Repeat("a", 65): false} {
		response := serve(v, "GET", "/oidc/login?renew="+url.QueryEscape(renew), nil)
		body, _, _ := strings.Cut(response.Cookies()[0].Value, ".")
		state, err := base64.RawURLEncoding.DecodeString(body)
		require.NoError(t, err)
		require.Equal(t, kept, strings.Contains(string(state), `"Renew":"`+renew+`"`), "%s", state)
	}
	another, with := begin(t, v)
	require.NotEqual(t, cookie.Value, another.Value)
	require.NotEqual(t, at.Query().Get("state"), with.Query().Get("state"))

	v.Address = "http://127.0.0.1:8080"
	cookie, _ = begin(t, v)
	require.Equal(t, "anneal-login", cookie.Name)
	require.Equal(t, "/oidc/", cookie.Path)
	require.False(t, cookie.Secure)
	require.True(t, cookie.HttpOnly)
}

// TestCallback checks which responses of a provider complete a login, and that a login completes
// once.
func TestCallback(t *testing.T) {
	p := newProvider(t)
	at := &clock{start}
	v := verifier(t, p, at, "team=accounts/acme:user")
	cookie, to := begin(t, v)
	stranger, _ := begin(t, v)
	state, nonce := to.Query().Get("state"), to.Query().Get("nonce")
	valid := url.Values{"state": {state}, "code": {"c"}}
	with := func(key, value string) url.Values {
		changed := maps.Clone(valid)
		changed.Set(key, value)
		return changed
	}
	token := func(changes map[string]any) string { return sign(t, p.keys[0], p.claims(start, changes)) }
	good := token(map[string]any{"nonce": nonce})
	for name, one := range map[string]struct {
		query   url.Values
		cookie  string
		token   string // that the provider grants; "" means that it refuses the code
		status  int
		message string
	}{
		"valid":            {valid, cookie.Value, good, 200, ""},
		"issuer":           {with("iss", p.URL), cookie.Value, good, 200, ""},
		"another issuer":   {with("iss", "https://evil.example.com"), cookie.Value, good, 403, "another identity provider"},
		"another state":    {with("state", "x"), cookie.Value, good, 403, "begun in another browser"},
		"no state":         {url.Values{"code": {"c"}}, cookie.Value, good, 403, "begun in another browser"},
		"no cookie":        {valid, "", good, 403, "begun in another browser"},
		"another cookie":   {valid, stranger.Value, good, 403, "begun in another browser"},
		"forged cookie":    {valid, cookie.Value + "A", good, 403, "begun in another browser"},
		"unsigned cookie":  {valid, strings.Split(cookie.Value, ".")[0], good, 403, "begun in another browser"},
		"refused":          {with("error", "access_denied<script>"), cookie.Value, good, 403, "access_denied"},
		"refused code":     {valid, cookie.Value, "", 403, "did not accept the code"},
		"another nonce":    {valid, cookie.Value, token(map[string]any{"nonce": "x"}), 403, "token of another login"},
		"no nonce":         {valid, cookie.Value, token(nil), 403, "token of another login"},
		"another audience": {valid, cookie.Value, token(map[string]any{"nonce": nonce, "aud": "x"}), 401, "has the audience"},
		"large token": {valid, cookie.Value, token(map[string]any{"nonce": nonce, "x": strings.Repeat("a", 16<<10)}), 401,
			"more than the maximum"},
	} {
		for _, accept := range []string{"application/json", "text/html,*/*"} {
			p.grants = one.token
			header := http.Header{"Accept": {accept}}
			if one.cookie != "" {
				header.Set("Cookie", cookie.Name+"="+one.cookie)
			}
			response := serve(v, "GET", "/oidc/callback?"+one.query.Encode(), header)
			body := text(t, response)
			require.Equal(t, one.status, response.StatusCode, "%s: %s", name, body)
			require.Contains(t, body, one.message, name)
			require.Equal(t, "no-store", response.Header.Get("Cache-Control"))
			if one.status == http.StatusOK {
				require.Contains(t, body, `<meta name="token" content="`+good+`">`)
				require.Contains(t, response.Header.Get("Content-Security-Policy"), "frame-ancestors 'none'")
				require.Len(t, response.Cookies(), 1)
				require.Negative(t, response.Cookies()[0].MaxAge, "the browser deletes the cookie")
				require.Equal(t, "/", response.Cookies()[0].Path)
				continue
			}
			require.NotContains(t, body, good)
			require.Equal(t, accept != "application/json", strings.HasPrefix(body, "<!doctype html>"), name)
			if accept != "application/json" {
				require.NotContains(t, body, "<script>", name)
			}
		}
	}
	at.Time = start.Add(10 * time.Minute)
	response := serve(v, "GET", "/oidc/callback?"+valid.Encode(),
		http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}})
	require.Equal(t, 403, response.StatusCode, "the login state has expired")
}

// TestExchangesAreBounded checks that clients cannot make the server send many requests to the
// provider at the same time.
func TestExchangesAreBounded(t *testing.T) {
	p := newProvider(t)
	v := verifier(t, p, &clock{start}, "team=accounts/acme:user")
	cookie, to := begin(t, v)
	p.began, p.proceed = make(chan struct{}), make(chan struct{})
	send := func() *http.Response {
		return serve(v, "GET", "/oidc/callback?"+url.Values{"state": {to.Query().Get("state")}, "code": {"c"}}.Encode(),
			http.Header{"Cookie": {cookie.Name + "=" + cookie.Value}})
	}
	const limit = 16
	ended := make(chan int, limit)
	for range limit {
		go func() { ended <- send().StatusCode }()
		<-p.began
	}
	refused := send()
	require.Equal(t, http.StatusServiceUnavailable, refused.StatusCode)
	require.Contains(t, text(t, refused), "OIDC_TOO_MANY_LOGINS")
	close(p.proceed)
	for range limit {
		require.Equal(t, 403, <-ended)
	}
}

// TestEndpointsNeedTLS checks that the server sends no code and no secret to an endpoint of the
// provider without TLS, also not by a redirect.
func TestEndpointsNeedTLS(t *testing.T) {
	for _, endpoint := range []string{"authorization_endpoint", "token_endpoint", "jwks_uri"} {
		p := newProvider(t)
		p.metadata = map[string]any{endpoint: "http://login.example.com/x"}
		err := verifier(t, p, &clock{start}).Refresh(t.Context())
		require.ErrorContains(t, err, "must begin with https://", endpoint)
	}
	p := newProvider(t)
	p.metadata = map[string]any{"authorization_endpoint": "", "token_endpoint": ""}
	v := verifier(t, p, &clock{start}, "team=accounts/acme:user")
	_, err := v.Verify(t.Context(), sign(t, p.keys[0], p.claims(start, nil)))
	require.NoError(t, err, "a provider without logins")
	require.Contains(t, text(t, serve(v, "GET", "/oidc/login", nil)), "offers no login in a browser")
	p = newProvider(t)
	p.redirect = "http://login.example.com/"
	require.ErrorContains(t, verifier(t, p, &clock{start}).Refresh(t.Context()), "must begin with https://")
}

// TestTypesOfTokens checks that an access token and a logout token, which the provider signs with
// the same keys, are not accepted as ID tokens.
func TestTypesOfTokens(t *testing.T) {
	p := newProvider(t)
	v := verifier(t, p, &clock{start}, "team=accounts/acme:reader")
	for kind, message := range map[string]string{"JWT": "", "jwt": "", "at+jwt": "at+jwt", "logout+jwt": "logout+jwt",
		"application/at+jwt": "application/at+jwt"} {
		options := (&jose.SignerOptions{}).WithType(jose.ContentType(kind))
		_, err := v.Verify(t.Context(), signWith(t, p.keys[0], options, p.claims(start, nil)))
		if message == "" {
			require.NoError(t, err, kind)
			continue
		}
		require.ErrorContains(t, err, fmt.Sprintf("has the type %q", message))
	}
	_, err := v.Verify(t.Context(), sign(t, p.keys[0], p.claims(start, map[string]any{
		"events": map[string]any{"http://schemas.openid.net/event/backchannel-logout": map[string]any{}}})))
	require.ErrorContains(t, err, "is a logout token")
}
