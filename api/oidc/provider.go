package oidc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"anneal/domain"
)

const (
	fetchTimeout = 10 * time.Second
	maxDocument  = 1 << 20 // maximum size of a response of the provider, in bytes
	// refreshEvery is how often the keys of the provider are read. A key that the provider has removed
	// is not accepted for longer.
	refreshEvery = 5 * time.Minute
	// fetchPause is the minimum time between two reads of the keys, so that tokens with unknown keys
	// do not flood the provider.
	fetchPause = 10 * time.Second
	// staleAfter is the age from which keys are no longer used, because the provider is unreachable.
	staleAfter = 24 * time.Hour
)

// A Provider verifies the ID tokens of an OpenID Connect provider. Its keys are read in the
// background, so the provider may be unreachable at any time: meanwhile, known keys are used for up
// to staleAfter.
type Provider struct {
	Options
	client    *http.Client
	state     atomic.Pointer[state] // nil until the provider was reachable
	cache     cache
	exchanges chan struct{} // has an element for each exchange of a code in progress

	fetching sync.Mutex
	tried    time.Time // time of the last fetch; guarded by fetching
	failure  error     // of the last fetch; guarded by fetching
}

// state is what was read from the provider.
type state struct {
	provider *oidc.Provider
	verifier *oidc.IDTokenVerifier
	algs     []jose.SignatureAlgorithm
	keys     []jose.JSONWebKey
	time     time.Time
}

// New returns a provider with the options. It does not connect: see Run.
func New(o Options) *Provider {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	if o.TLS != nil {
		transport.TLSClientConfig = o.TLS
	}
	return &Provider{Options: o, exchanges: make(chan struct{}, maxExchanges), client: &http.Client{
		Timeout: fetchTimeout, Transport: bounded{transport}, CheckRedirect: CheckRedirect}}
}

// CheckRedirect is http.Client.CheckRedirect for requests to a provider, which may contain codes,
// tokens and secrets: they follow no redirect to a server without TLS.
func CheckRedirect(r *http.Request, via []*http.Request) error {
	const maxRedirects = 10
	if len(via) >= maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}
	if err := CheckEndpoint(r.URL.String()); err != nil {
		return fmt.Errorf("the target of the redirect %w", err)
	}
	return nil
}

// bounded is an http.RoundTripper whose responses end after maxDocument bytes.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err == nil {
		response.Body = struct {
			io.Reader
			io.Closer
		}{io.LimitReader(response.Body, maxDocument), response.Body}
	}
	return response, err
}

// Run reads the keys of the provider until ctx is done.
func (p *Provider) Run(ctx context.Context) error {
	for ready := true; ; {
		err := p.Refresh(ctx)
		pause := refreshEvery
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			pause = fetchPause
			if ready {
				p.Logger.Warn("the identity provider is unreachable: API keys work, new logins do not", "issuer", p.Issuer,
					"error", err)
			}
		case !ready:
			p.Logger.Info("the identity provider is reachable again", "issuer", p.Issuer)
		}
		ready = err == nil
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Refresh reads the configuration and the keys of the provider.
func (p *Provider) Refresh(ctx context.Context) error {
	p.fetching.Lock()
	defer p.fetching.Unlock()
	return p.fetch(ctx)
}

// fetch is Refresh for a caller that holds p.fetching.
func (p *Provider) fetch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	s, err := p.read(ctx)
	p.tried, p.failure = p.Now(), err
	if err == nil {
		p.state.Store(s)
	}
	return err
}

func (p *Provider) read(ctx context.Context) (*state, error) {
	provider, err := oidc.NewProvider(oidc.ClientContext(ctx, p.client), p.Issuer)
	if err != nil {
		return nil, err
	}
	var about struct {
		JWKSURI    string   `json:"jwks_uri"`
		Algorithms []string `json:"id_token_signing_alg_values_supported"`
	}
	if err := provider.Claims(&about); err != nil {
		return nil, err
	}
	for _, endpoint := range []string{provider.Endpoint().AuthURL, provider.Endpoint().TokenURL} {
		if err := CheckEndpoint(endpoint); endpoint != "" && err != nil {
			return nil, fmt.Errorf("the endpoint %q of the provider %w", endpoint, err)
		}
	}
	s := &state{provider: provider, time: p.Now()}
	var names []string
	for _, alg := range append(about.Algorithms, string(jose.RS256)) {
		if slices.Contains(algorithms, jose.SignatureAlgorithm(alg)) && !slices.Contains(names, alg) {
			names = append(names, alg)
			s.algs = append(s.algs, jose.SignatureAlgorithm(alg))
		}
	}
	if s.keys, err = p.readKeys(ctx, about.JWKSURI); err != nil {
		return nil, err
	}
	s.verifier = oidc.NewVerifier(p.Issuer, s, &oidc.Config{SupportedSigningAlgs: names,
		SkipClientIDCheck: true, SkipExpiryCheck: true}) // see Provider.check
	return s, nil
}

// algorithms are the signatures that are accepted: asymmetric ones.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.ES256, jose.ES384, jose.ES512,
	jose.PS256, jose.PS384, jose.PS512, jose.EdDSA}

func (p *Provider) readKeys(ctx context.Context, url string) (keys []jose.JSONWebKey, err error) {
	if err := CheckEndpoint(url); err != nil {
		return nil, fmt.Errorf("the jwks_uri %q of the provider %w", url, err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	var raw struct {
		Keys []json.RawMessage `json:"keys"`
	}
	if err := json.NewDecoder(response.Body).Decode(&raw); err != nil || response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read the keys at %s: status %d, %w", url, response.StatusCode,
			errors.Join(err, errNoKeys))
	}
	for _, one := range raw.Keys {
		var key jose.JSONWebKey
		// keys of unknown types are ignored, as RFC 7517 requires
		if json.Unmarshal(one, &key) == nil && key.Valid() && key.IsPublic() && (key.Use == "" || key.Use == "sig") {
			keys = append(keys, key)
		}
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("read the keys at %s: %w", url, errNoKeys)
	}
	return keys, nil
}

var errNoKeys = errors.New("no key for signatures was found")

// VerifySignature implements oidc.KeySet.
func (s *state) VerifySignature(_ context.Context, text string) ([]byte, error) {
	signed, err := jose.ParseSignedCompact(text, s.algs)
	if err != nil {
		return nil, err
	}
	for _, key := range s.candidates(signed.Signatures[0].Header.KeyID) {
		if payload, err := signed.Verify(&key); err == nil {
			return payload, nil
		}
	}
	return nil, errors.New("no key of the provider has made the signature")
}

// candidates returns the keys with an ID; all keys for the ID "".
func (s *state) candidates(id string) []jose.JSONWebKey {
	if id == "" {
		return s.keys
	}
	return slices.DeleteFunc(slices.Clone(s.keys), func(k jose.JSONWebKey) bool { return k.KeyID != id })
}

// current returns the state, whose keys are not stale.
func (p *Provider) current() *state {
	if s := p.state.Load(); s != nil && p.Now().Sub(s.time) < staleAfter {
		return s
	}
	return nil
}

// with returns the state with a key of the ID, which it reads if it is new. It returns an error if
// the keys cannot be read.
func (p *Provider) with(ctx context.Context, keyID string) (*state, error) {
	s := p.current()
	if s != nil && len(s.candidates(keyID)) > 0 {
		return s, nil
	}
	p.fetching.Lock()
	defer p.fetching.Unlock()
	if newer := p.current(); newer == s && p.Now().Sub(p.tried) >= fetchPause {
		// other requests wait for this fetch too, so the client's disconnect does not end it
		_ = p.fetch(context.WithoutCancel(ctx))
	}
	if s = p.current(); s == nil {
		return nil, p.unavailable(p.failure)
	}
	return s, nil
}

// unavailable returns the error of a request that needs the provider while it is unreachable. The
// cause is only logged, because it may name internal addresses.
func (p *Provider) unavailable(cause error) error {
	p.Logger.Debug("the identity provider is unreachable", "issuer", p.Issuer, "error", cause)
	return &domain.Error{Code: domain.Unavailable, Reason: "OIDC_UNAVAILABLE",
		Message: "the identity provider " + p.Issuer + " is unreachable, so this server cannot verify logins: try again " +
			"later, or use an API key"}
}
