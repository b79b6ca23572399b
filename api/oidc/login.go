package oidc

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"golang.org/x/oauth2"

	"anneal/api/request"
	"anneal/domain"
)

// Paths of the login of the console, with the authorization code flow and PKCE.
const (
	loginPath    = "/oidc/login"
	callbackPath = "/oidc/callback"
)

const (
	cookieName = "anneal-login"
	loginTime  = 10 * time.Minute // how long a user may take to log in at the provider
	// maxExchanges is the maximum number of codes that are exchanged at the same time, so that clients
	// with invented codes do not flood the provider.
	maxExchanges = 16
)

// Operations returns the operations of the console's login.
func (p *Provider) Operations() []request.Operation {
	page := func(path string, handle request.Handler) request.Operation {
		return request.Operation{ID: "GET " + path, Method: "GET", Path: path, Gate: request.Everyone, Hidden: true,
			Handle: explained(handle)}
	}
	return []request.Operation{page(loginPath, p.begin), page(callbackPath, p.complete)}
}

// Scopes returns the scopes that a client requests from a provider with the given scopes: those of
// an ID token with name and groups, and the scope for a refresh token. Without a list of the
// provider, they are those that OpenID Connect defines.
func Scopes(supported []string, refresh bool) []string {
	wanted := []string{oidc.ScopeOpenID, "profile", "email"}
	for _, scope := range []string{"groups", oidc.ScopeOfflineAccess} {
		if slices.Contains(supported, scope) && (refresh || scope != oidc.ScopeOfflineAccess) {
			wanted = append(wanted, scope)
		}
	}
	return wanted
}

// A loginState is the state of a login that a browser has begun. It is in a signed cookie of the
// browser.
type loginState struct {
	State    string
	Nonce    string
	Verifier string // of PKCE
	// Renew is the channel on which the page of the callback sends the token to the tab of the browser
	// whose login it renews; "" for another login.
	Renew   string
	Expires time.Time
}

// channelName matches the names of channels, which the console makes of random numbers.
var channelName = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)

// config returns the client of the console.
func (p *Provider) config(s *state) *oauth2.Config {
	var about struct {
		Scopes []string `json:"scopes_supported"`
	}
	_ = s.provider.Claims(&about)
	return &oauth2.Config{ClientID: p.ClientID, ClientSecret: p.Secret, Endpoint: s.provider.Endpoint(),
		RedirectURL: p.Address + callbackPath, Scopes: Scopes(about.Scopes, false)}
}

// begin redirects the browser to the provider.
func (p *Provider) begin(c *request.Call) (any, error) {
	s, err := p.with(c.Ctx, "")
	if err != nil {
		return nil, err
	}
	if s.provider.Endpoint().AuthURL == "" { // such as the issuer of a system that runs programs
		return nil, rejected("the identity provider %s offers no login in a browser: use an API key", p.Issuer)
	}
	one := loginState{State: rand.Text(), Nonce: rand.Text(), Verifier: oauth2.GenerateVerifier(),
		Expires: p.Now().Add(loginTime)}
	if renew := c.Request.URL.Query().Get("renew"); channelName.MatchString(renew) {
		one.Renew = renew
	}
	p.setCookie(c.Writer, p.cookieValue(one), int(loginTime/time.Second))
	noStore(c.Writer)
	http.Redirect(c.Writer, c.Request, p.config(s).AuthCodeURL(one.State, oidc.Nonce(one.Nonce),
		oauth2.S256ChallengeOption(one.Verifier)), http.StatusFound)
	return nil, nil
}

// complete exchanges the code of the provider for an ID token, and hands it to the page of the
// console.
func (p *Provider) complete(c *request.Call) (any, error) {
	noStore(c.Writer)
	query := c.Request.URL.Query()
	one, ok := p.loginStateOf(c.Request)
	if !ok || subtle.ConstantTimeCompare([]byte(query.Get("state")), []byte(one.State)) != 1 {
		return nil, rejected("the login has expired, or was begun in another browser: open %s%s to log in again",
			p.Address, loginPath)
	}
	p.setCookie(c.Writer, "", -1) // a login state is used once
	// RFC 9207: the response of another provider must not end the login at this one
	if issuer := query.Get("iss"); issuer != "" && issuer != p.Issuer {
		return nil, rejected("the response is of another identity provider than %s: try again", p.Issuer)
	}
	if query.Get("error") != "" {
		return nil, rejected("the identity provider refused the login: %s", shortened(query.Get("error")))
	}
	s, err := p.with(c.Ctx, "")
	if err != nil {
		return nil, err
	}
	text, err := p.exchange(c, s, query.Get("code"), one)
	if err != nil {
		return nil, err
	}
	identity, token, _, err := p.verify(c.Ctx, text)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare([]byte(token.Nonce), []byte(one.Nonce)) != 1 {
		return nil, rejected("the identity provider sent the token of another login: try again")
	}
	c.Logger.Debug("a user logged in to the console", "request", c.ID, "user", identity.User)
	h := c.Writer.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; base-uri 'none'; frame-ancestors 'none'")
	page := `<!doctype html><html lang="en"><title>anneal</title><meta name="token" content="` + html.EscapeString(text) +
		`">`
	if one.Renew != "" {
		page += `<meta name="renew" content="` + html.EscapeString(one.Renew) + `">`
	}
	_, _ = c.Writer.Write([]byte(page + `<body><script src="/console/oidc.js"></script>`))
	return nil, nil
}

// exchange returns the ID token that the provider grants for a code.
func (p *Provider) exchange(c *request.Call, s *state, code string, one loginState) (token string, err error) {
	select {
	case p.exchanges <- struct{}{}:
		defer func() { <-p.exchanges }()
	default:
		return "", &domain.Error{Code: domain.Unavailable, Reason: "OIDC_TOO_MANY_LOGINS",
			Message: "too many users log in at the same time: try again"}
	}
	granted, err := p.config(s).Exchange(oidc.ClientContext(c.Ctx, p.client), code, oauth2.VerifierOption(one.Verifier))
	if err != nil {
		p.Logger.Warn("a login was refused by the token endpoint of the identity provider", "request", c.ID, "error",
			causeOf(err))
		return "", rejected("the identity provider did not accept the code of the login: try again, or ask the operator " +
			"to read the server's log")
	}
	token, _ = granted.Extra("id_token").(string)
	return token, nil
}

// explained returns the handler whose errors browsers get as a page instead of JSON.
func explained(handle request.Handler) request.Handler {
	return func(c *request.Call) (any, error) {
		value, err := handle(c)
		if err == nil || !strings.Contains(c.Request.Header.Get("Accept"), "text/html") {
			return value, err
		}
		c.LogFailure(c.Request, err)
		fault := request.ErrorOf(err)
		request.ObserveError(c.Writer, fault)
		noStore(c.Writer)
		h := c.Writer.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		c.Writer.WriteHeader(request.HTTPStatus(fault))
		_, _ = fmt.Fprintf(c.Writer, `<!doctype html><html lang="en"><title>The login failed · anneal</title>`+
			`<meta name="viewport" content="width=device-width"><h1>The login failed</h1><p>%s</p>`+
			`<p><a href="%s">Try again</a> · <a href="/">Back to the console</a></p><small>request %s</small>`,
			html.EscapeString(domain.Printable(fault.Message)), loginPath, html.EscapeString(c.ID))
		return nil, nil
	}
}

// noStore sets the headers of responses that no cache may store.
func noStore(w http.ResponseWriter) {
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Referrer-Policy", "no-referrer")
	w.Header().Set("X-Content-Type-Options", "nosniff")
}

// causeOf returns an error of the token endpoint for the log, without the body of its response.
func causeOf(err error) string {
	if answer, ok := err.(*oauth2.RetrieveError); ok {
		return shortened(answer.ErrorCode + " " + answer.ErrorDescription)
	}
	return err.Error()
}

// shortened returns a text of the provider for a message.
func shortened(text string) string {
	const maxText = 200
	return strings.ToValidUTF8(domain.Printable(text[:min(len(text), maxText)]), "")
}

// ReasonRejected is the reason of an error that ends a login in the console.
const ReasonRejected = "OIDC_LOGIN_REJECTED"

func rejected(format string, args ...any) error {
	e := domain.Errorf(domain.PermissionDenied, format, args...)
	e.Reason = ReasonRejected
	return e
}

// cookie returns the cookie of a login, without a value. With TLS it has the prefix __Host-,
// with which browsers refuse the cookie from connections without TLS and from other hosts of the
// domain. They could give the browser the login state of another user, who would then be logged in
// there.
func (p *Provider) cookie() *http.Cookie {
	cookie := &http.Cookie{Name: cookieName, Path: "/oidc/", HttpOnly: true, SameSite: http.SameSiteLaxMode}
	if strings.HasPrefix(p.Address, "https://") {
		cookie.Name, cookie.Path, cookie.Secure = "__Host-"+cookieName, "/", true
	}
	return cookie
}

func (p *Provider) setCookie(w http.ResponseWriter, value string, maxAge int) {
	cookie := p.cookie()
	cookie.Value, cookie.MaxAge = value, maxAge
	http.SetCookie(w, cookie)
}

// cookieValue returns the value of the cookie of a login.
func (p *Provider) cookieValue(one loginState) string {
	text, err := json.Marshal(one)
	if err != nil {
		panic(err) // impossible: a login state has only texts and a time
	}
	body := base64.RawURLEncoding.EncodeToString(text)
	return body + "." + p.signature(body)
}

func (p *Provider) signature(body string) string {
	mac := hmac.New(sha256.New, p.Key)
	mac.Write([]byte("login cookie\x00" + body))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// loginStateOf returns the login state in the cookie of a request. It returns false if there is
// none, if this installation has not signed it, or if it has expired.
func (p *Provider) loginStateOf(r *http.Request) (one loginState, ok bool) {
	cookie, err := r.Cookie(p.cookie().Name)
	if err != nil {
		return loginState{}, false
	}
	body, signature, _ := strings.Cut(cookie.Value, ".")
	if !hmac.Equal([]byte(signature), []byte(p.signature(body))) {
		return loginState{}, false
	}
	text, err := base64.RawURLEncoding.DecodeString(body)
	if err != nil || json.Unmarshal(text, &one) != nil {
		return loginState{}, false
	}
	return one, one.State != "" && p.Now().Before(one.Expires)
}
