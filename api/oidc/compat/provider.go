// Package compat logs users in at another implementation of an OpenID Connect provider, unmodified.
// It is a module of its own, so that anneal does not depend on the provider. The tests of the
// console in a browser use the same provider.
package compat

import (
	"context"
	"crypto/sha256"
	"fmt"
	"html"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/zitadel/oidc/v3/example/server/storage"
	"github.com/zitadel/oidc/v3/pkg/oidc"
	"github.com/zitadel/oidc/v3/pkg/op"
)

// A Provider is an OpenID Connect provider with users in groups, whose client is the public client
// anneal.
type Provider struct {
	*httptest.Server
	*store
	op *op.Provider
}

// A store is the provider's example of a store, with groups of users and clients of this test.
type store struct {
	*storage.Storage
	mu       sync.Mutex
	groups   map[string][]string // by user
	callback string              // redirect URI of the server
	lifetime time.Duration       // of ID tokens
}

// Password is the password of all users.
const Password = "correct horse"

// users implements storage.UserStore: each user has a verified email address at example.com.
type users struct{}

func (users) GetUserByID(id string) *storage.User {
	return &storage.User{ID: id, Username: id, Password: Password, Email: id + "@example.com", EmailVerified: true}
}

func (u users) GetUserByUsername(name string) *storage.User { return u.GetUserByID(name) }

func (users) ExampleClientID() string { return storage.ServiceUserID }

// A client is a public client for all grants, whose ID tokens have the email address.
type client struct {
	*storage.Client
	of *store
}

func (c client) GrantTypes() []oidc.GrantType {
	return []oidc.GrantType{oidc.GrantTypeCode, oidc.GrantTypeRefreshToken, oidc.GrantTypeDeviceCode}
}

func (c client) IDTokenUserinfoClaimsAssertion() bool { return true }

func (c client) IDTokenLifetime() time.Duration {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return c.of.lifetime
}

func (c client) RedirectURIs() []string {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return []string{c.of.callback}
}

func (c client) DevMode() bool { return true } // the server has no TLS

func (s *store) GetClientByClientID(_ context.Context, id string) (op.Client, error) {
	if id != "anneal" {
		return nil, oidc.ErrInvalidClient()
	}
	return client{storage.NativeClient(id), s}, nil
}

// Set sets the groups of a user.
func (s *store) Set(user string, groups ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.groups[user] = groups
}

// SetLifetime sets the lifetime of ID tokens. It is an hour at the beginning.
func (s *store) SetLifetime(lifetime time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lifetime = lifetime
}

// SetCallback sets the redirect URI of the client.
func (s *store) SetCallback(url string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.callback = url
}

func (s *store) describe(info *oidc.UserInfo, user string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	info.AppendClaims("groups", slices.Clone(s.groups[user]))
}

func (s *store) SetUserinfoFromScopes(ctx context.Context, info *oidc.UserInfo, user, client string,
	scopes []string) error {
	s.describe(info, user)
	return s.Storage.SetUserinfoFromScopes(ctx, info, user, client, scopes)
}

func (s *store) SetUserinfoFromRequest(ctx context.Context, info *oidc.UserInfo, token op.IDTokenRequest,
	scopes []string) error {
	s.describe(info, token.GetSubject())
	return s.Storage.SetUserinfoFromRequest(ctx, info, token, scopes)
}

// New starts a provider, which ends with the test.
func New(t *testing.T) *Provider {
	storage.RegisterClients(storage.NativeClient("anneal")) // for the checks of its secret, which is empty
	p := &Provider{store: &store{Storage: storage.NewStorage(users{}), groups: map[string][]string{},
		lifetime: time.Hour}}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/login/") {
			p.login(w, r)
			return
		}
		p.op.ServeHTTP(w, r)
	}))
	t.Cleanup(p.Close)
	var err error
	p.op, err = op.NewProvider(&op.Config{CryptoKey: sha256.Sum256([]byte("test")), CodeMethodS256: true,
		GrantTypeRefreshToken: true, DeviceAuthorization: op.DeviceAuthorizationConfig{Lifetime: time.Minute,
			PollInterval: time.Second, UserFormPath: "/device", UserCode: op.UserCodeBase20}},
		p.store, op.StaticIssuer(p.URL), op.WithAllowInsecure())
	require.NoError(t, err)
	return p
}

// login shows the form in which a user logs in, and continues the login.
func (p *Provider) login(w http.ResponseWriter, r *http.Request) {
	id := r.FormValue("authRequestID")
	if r.Method == http.MethodPost &&
		p.CheckUsernamePassword(r.FormValue("username"), r.FormValue("password"), id) == nil {
		http.Redirect(w, r, op.AuthCallbackURL(p.op)(op.ContextWithIssuer(r.Context(), p.URL), id), http.StatusFound)
		return
	}
	_, _ = fmt.Fprintf(w, `<!doctype html><title>Provider</title><form method="post"><input name="username">`+
		`<input name="password" type="password"><input name="authRequestID" type="hidden" value="%s"><button>Log in</button>`+
		`</form>`, html.EscapeString(id))
}

// RevokeToken adds the client for the same reason as TokenRequestByRefreshToken.
func (s *store) RevokeToken(ctx context.Context, token, user, client string) *oidc.Error {
	_, _ = s.TokenRequestByRefreshToken(ctx, token) // a token that is unknown stays unknown
	return s.Storage.RevokeToken(ctx, token, user, client)
}

// TokenRequestByRefreshToken adds the client, which the example of a store forgets in the device
// authorization grant.
func (s *store) TokenRequestByRefreshToken(ctx context.Context, token string) (op.RefreshTokenRequest, error) {
	request, err := s.Storage.TokenRequestByRefreshToken(ctx, token)
	if known, ok := request.(*storage.RefreshTokenRequest); ok {
		known.ApplicationID = "anneal"
	}
	return request, err
}
