package cli

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/oauth2"

	"anneal/api/oidc"
	"anneal/domain"
	"anneal/internal/datadir"
)

const (
	// maxMetadata is the maximum size of the provider's metadata, in bytes.
	maxMetadata = 1 << 20
	// renewBefore is how long before its end an ID token is renewed.
	renewBefore = 30 * time.Second
	// providerTimeout is the maximum time for one request to the provider.
	providerTimeout = 30 * time.Second
)

// logInByDevice logs a user in by the device authorization grant (RFC 8628), and sets the login of the
// context.
func logInByDevice(c *cobra.Command, file *datadir.Context) error {
	client, err := clientOf(c, *file)
	if err != nil {
		return err
	}
	client.Login = &datadir.Login{} // there is no credential yet
	var about struct {
		Servers  []string `json:"authorization_servers"`
		ClientID string   `json:"anneal_client_id"`
	}
	if err := client.call(c.Context(), http.MethodGet, "/.well-known/oauth-protected-resource", nil, nil,
		&about); err != nil {
		return err
	}
	if len(about.Servers) == 0 {
		return fmt.Errorf("the server %s has no identity provider: log in with an API key, without --oidc", file.Address)
	}
	login := &datadir.Login{Issuer: about.Servers[0], ClientID: about.ClientID}
	provider, err := client.oauth(c.Context(), login)
	if err != nil {
		return err
	}
	config, ctx := provider.Config, provider.ctx
	if config.Endpoint.DeviceAuthURL == "" {
		return fmt.Errorf("the identity provider %s does not offer the device authorization grant: enable it, or "+
			"log in with an API key", login.Issuer)
	}
	device, err := config.DeviceAuth(ctx)
	if err != nil {
		return fmt.Errorf("begin the login at %s: %w", login.Issuer, providerError(err))
	}
	fmt.Fprintf(c.ErrOrStderr(), "Open %s in a browser, and enter the code %s\n", domain.Printable(device.VerificationURI),
		domain.Printable(device.UserCode))
	if device.VerificationURIComplete != "" {
		fmt.Fprintf(c.ErrOrStderr(), "(with the code: %s)\n", domain.Printable(device.VerificationURIComplete))
	}
	granted, err := config.DeviceAccessToken(ctx, device)
	if err != nil {
		return fmt.Errorf("log in at %s: %w", login.Issuer, providerError(err))
	}
	file.Login = login
	return takeTokens(login, granted)
}

// takeTokens stores the tokens that the provider has granted.
func takeTokens(login *datadir.Login, granted *oauth2.Token) error {
	text, _ := granted.Extra("id_token").(string)
	if text == "" {
		return fmt.Errorf("the identity provider %s granted no ID token: check the scope openid of the client %s",
			login.Issuer, login.ClientID)
	}
	login.IDToken, login.RefreshToken = text, cmp.Or(granted.RefreshToken, login.RefreshToken)
	return nil
}

// An identityProvider is the provider of a login, with the client of the command line there.
type identityProvider struct {
	*oauth2.Config
	ctx        context.Context // for requests to the provider
	http       *http.Client
	revocation string // URL that revokes tokens (RFC 7009); "" if the provider has none
}

// oauth reads the metadata of the provider of a login.
func (c *client) oauth(ctx context.Context, login *datadir.Login) (*identityProvider, error) {
	if err := oidc.CheckIssuer(login.Issuer); err != nil {
		return nil, fmt.Errorf("the identity provider %q of the server %w", login.Issuer, err)
	}
	to := *cmp.Or(c.http, http.DefaultClient)
	to.Timeout, to.CheckRedirect = providerTimeout, oidc.CheckRedirect
	ctx = context.WithValue(ctx, oauth2.HTTPClient, &to)
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(login.Issuer, "/")+"/.well-known/openid-configuration", nil)
	if err != nil {
		return nil, err
	}
	response, err := to.Do(request)
	if err != nil {
		return nil, fmt.Errorf("the identity provider %s is unreachable: %w", login.Issuer, withoutURL(err))
	}
	defer response.Body.Close()
	var about struct {
		Issuer     string   `json:"issuer"`
		Device     string   `json:"device_authorization_endpoint"`
		Token      string   `json:"token_endpoint"`
		Revocation string   `json:"revocation_endpoint"`
		Scopes     []string `json:"scopes_supported"`
	}
	err = json.NewDecoder(io.LimitReader(response.Body, maxMetadata)).Decode(&about)
	if err != nil || response.StatusCode != http.StatusOK || about.Issuer != login.Issuer {
		return nil, fmt.Errorf("%s is not an OpenID Connect provider of this issuer (status %d)", login.Issuer,
			response.StatusCode)
	}
	for _, endpoint := range []string{about.Device, about.Token, about.Revocation} {
		if endpoint != "" && oidc.CheckEndpoint(endpoint) != nil {
			return nil, fmt.Errorf("the identity provider %s has the endpoint %q, which has no TLS", login.Issuer, endpoint)
		}
	}
	config := &oauth2.Config{ClientID: login.ClientID, Scopes: oidc.Scopes(about.Scopes, true), Endpoint: oauth2.Endpoint{
		DeviceAuthURL: about.Device, TokenURL: about.Token, AuthStyle: oauth2.AuthStyleInParams}}
	return &identityProvider{config, ctx, &to, about.Revocation}, nil
}

// errNoRevocation is the error of a provider that cannot revoke logins.
var errNoRevocation = errors.New("the identity provider does not offer that")

// revoke makes the provider refuse the refresh token of a login from now on (RFC 7009).
func (c *client) revoke(ctx context.Context, login *datadir.Login) error {
	provider, err := c.oauth(ctx, login)
	if err != nil {
		return err
	}
	if provider.revocation == "" {
		return errNoRevocation
	}
	form := url.Values{"token": {login.RefreshToken}, "token_type_hint": {"refresh_token"}, "client_id": {login.ClientID}}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, provider.revocation, strings.NewReader(form.Encode()))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	response, err := provider.http.Do(request)
	if err != nil {
		return withoutURL(err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the identity provider responded with status %d", response.StatusCode)
	}
	return nil
}

// providerError returns an error of the provider without the body of its response, which may have
// tokens.
func providerError(err error) error {
	var answer *oauth2.RetrieveError
	if errors.As(err, &answer) && answer.ErrorCode != "" {
		return errors.New(domain.Printable(strings.TrimSpace(answer.ErrorCode + " " + answer.ErrorDescription)))
	} else if errors.As(err, &answer) {
		return fmt.Errorf("the provider responded with status %d", answer.Response.StatusCode)
	}
	return withoutURL(err)
}

// credential returns the API key or the ID token for a request, which it renews if necessary.
func (c *client) credential(ctx context.Context) (string, error) {
	if c.Login == nil {
		return c.APIKey, nil
	}
	if c.Login.Issuer == "" || time.Until(endOf(c.Login.IDToken)) > renewBefore {
		return c.Login.IDToken, nil
	}
	if c.Path == "" || c.Login.RefreshToken == "" {
		return c.Login.IDToken, nil // the server says when it has expired
	}
	return c.renew(ctx)
}

// renew renews the ID token and stores it. Other commands that run at the same time wait, and then use
// the same token, because many providers accept a refresh token only once.
func (c *client) renew(ctx context.Context) (string, error) {
	release, err := datadir.LockFile(c.Path)
	if err != nil {
		return "", err
	}
	defer release()
	file, err := datadir.ReadContext(c.Path)
	if err != nil || file.Login == nil || file.Address != c.Address || file.Login.Issuer != c.Login.Issuer {
		// what is stored now must not be replaced by the login that this command began with
		return "", fmt.Errorf("another command has logged out or in since this one began: repeat it, or log in with "+
			"`anneal login %s --oidc`", c.Address)
	}
	*c.Login = *file.Login
	if time.Until(endOf(c.Login.IDToken)) > renewBefore {
		return c.Login.IDToken, nil
	}
	provider, err := c.oauth(ctx, c.Login)
	if err != nil {
		return "", err
	}
	granted, err := provider.TokenSource(provider.ctx, &oauth2.Token{RefreshToken: c.Login.RefreshToken}).Token()
	if err != nil {
		return "", fmt.Errorf("the login could not be renewed at %s (%w): log in again with `anneal login %s --oidc`",
			c.Login.Issuer, providerError(err), c.Address)
	}
	if err := takeTokens(c.Login, granted); err != nil {
		return "", err
	}
	*file.Login = *c.Login
	return c.Login.IDToken, storeLogin(c.Path, file)
}

// endOf returns when an ID token expires, which only the server verifies; zero if it is unknown.
func endOf(token string) time.Time {
	_, rest, _ := strings.Cut(token, ".")
	payload, _, _ := strings.Cut(rest, ".")
	text, err := base64.RawURLEncoding.DecodeString(payload)
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(text, &claims) != nil {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expires), 0)
}

// describeLogin adds the user, the account and the role of the client's login to self.
func (c *client) describeLogin(ctx context.Context, self map[string]any) error {
	var caller map[string]any
	if err := c.call(ctx, http.MethodGet, "/v1/caller", nil, nil, &caller); err != nil {
		return err
	}
	user, _ := domain.UserOf(domain.Name(cell(caller, "name")))
	self["user"], self["role"], self["expireTime"] = user, caller["role"], caller["expireTime"]
	if c.Account == "" {
		self["account"] = caller["account"]
	}
	return nil
}
