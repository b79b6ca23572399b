package oidc

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-oidc/v3/oidc"
	"github.com/go-jose/go-jose/v4"

	"anneal/api/request"
	"anneal/domain"
)

const (
	maxToken = 16 << 10 // maximum size of an ID token, in bytes
	maxUser  = 128      // maximum length of a user's name, in bytes
	maxCache = 4096     // maximum number of cached tokens
	// skew is the tolerated difference between the clocks of the provider and this server.
	skew = 30 * time.Second
)

// Verify implements request.Tokens.
func (p *Provider) Verify(ctx context.Context, text string) (*request.Identity, error) {
	if err := checkSize(text); err != nil {
		return nil, err
	}
	digest := sha256.Sum256([]byte(text))
	if known := p.cache.get(digest, p.current()); known != nil {
		if !p.Now().Before(known.Expires) {
			return nil, expired(known.Expires.Add(-skew))
		}
		return known, nil
	}
	identity, _, by, err := p.verify(ctx, text)
	if err == nil {
		p.cache.put(digest, by, identity, p.Now())
	}
	return identity, err
}

// checkSize returns an error for a token that is too large.
func checkSize(text string) error {
	if len(text) <= maxToken {
		return nil
	}
	return invalid("has %d bytes, more than the maximum of %d: reduce the claims of the token, such as its groups",
		len(text), maxToken)
}

// verify verifies a token without the cache. verifiedBy is the state whose keys have verified it.
func (p *Provider) verify(ctx context.Context, text string) (identity *request.Identity, token *oidc.IDToken,
	verifiedBy *state, err error) {
	if err = checkSize(text); err != nil {
		return nil, nil, nil, err
	}
	signed, err := jose.ParseSignedCompact(text, algorithms)
	if err != nil || len(signed.Signatures) != 1 {
		return nil, nil, nil, invalid("is malformed, or its signature has an algorithm that is not accepted")
	}
	var unverified struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(signed.UnsafePayloadWithoutVerification(), &unverified) != nil || unverified.Issuer != p.Issuer {
		return nil, nil, nil, invalid("has the issuer %q, not %q", shortened(unverified.Issuer), p.Issuer)
	}
	// an access token for this server (RFC 9068) may be of another client, and a logout token is no
	// login
	if kind, ok := signed.Signatures[0].Header.ExtraHeaders[jose.HeaderType]; ok {
		if text, _ := kind.(string); !strings.EqualFold(text, "JWT") {
			return nil, nil, nil, invalid("has the type %.40q in its header: send an ID token", text)
		}
	}
	keyID := signed.Signatures[0].Header.KeyID
	if verifiedBy, err = p.with(ctx, keyID); err != nil {
		return nil, nil, nil, err
	}
	if len(verifiedBy.candidates(keyID)) == 0 {
		return nil, nil, nil, invalid("is signed with a key that the provider does not publish")
	}
	if token, err = verifiedBy.verifier.Verify(ctx, text); err != nil {
		return nil, nil, nil, invalid("has an invalid signature")
	}
	identity, err = p.check(token)
	return identity, token, verifiedBy, err
}

// check returns the holder of a token whose signature and issuer are verified.
func (p *Provider) check(token *oidc.IDToken) (*request.Identity, error) {
	var claims map[string]json.RawMessage
	if err := token.Claims(&claims); err != nil {
		return nil, invalid("has claims that are not a JSON object")
	}
	now := p.Now()
	clients := []string{p.ClientID, p.CommandLineClient()}
	ours := func(client string) bool { return slices.Contains(clients, client) }
	party := textIn(claims["azp"])
	switch {
	case !slices.ContainsFunc(token.Audience, ours):
		return nil, invalid("has the audience %q, but must be issued to a client of this server (%s): log in again, or "+
			"correct --oidc-client-id", shortened(strings.Join(token.Audience, ", ")), strings.Join(clients, ", "))
	case party != "" && !ours(party):
		return nil, invalid("has the authorized party %q (claim azp), but must be issued to a client of this server (%s): "+
			"log in again", shortened(party), strings.Join(clients, ", "))
	case claims["events"] != nil:
		return nil, invalid("is a logout token: send an ID token")
	case token.Expiry.IsZero() || token.Expiry.Unix() <= 0:
		return nil, invalid("has no expiration time (claim exp)")
	case !now.Before(token.Expiry.Add(skew)):
		return nil, expired(token.Expiry)
	case token.IssuedAt.After(now.Add(skew)), timeIn(claims["nbf"]).After(now.Add(skew)):
		return nil, invalid("is not valid yet (claim nbf or iat): synchronize the clocks of this server and the provider")
	}
	user := textIn(claims[p.UsernameClaim])
	if user == "" || len(user) > maxUser {
		return nil, invalid("must have the name of the user in the claim %s, a text of 1 to %d bytes: check the scopes and "+
			"claims of the client at the provider, or choose another claim with --oidc-username-claim", p.UsernameClaim, maxUser)
	}
	if verified, ok := claims["email_verified"]; ok && p.UsernameClaim == "email" && string(verified) != "true" &&
		string(verified) != `"true"` {
		return nil, invalid("has an email address that the provider has not verified, so it cannot be the name of the user")
	}
	groups := textsIn(claims[p.GroupsClaim])
	return &request.Identity{User: user, Groups: groups, Grants: grantsOf(p.Rules, groups),
		Expires: token.Expiry.Add(skew)}, nil
}

// textIn returns a claim that is a string; "" for other claims.
func textIn(claim json.RawMessage) (text string) {
	if json.Unmarshal(claim, &text) != nil {
		return ""
	}
	return text
}

// textsIn returns the strings of a claim that is a string or an array. Other elements are ignored.
func textsIn(claim json.RawMessage) (texts []string) {
	if text := textIn(claim); text != "" {
		return []string{text}
	}
	var elements []json.RawMessage
	_ = json.Unmarshal(claim, &elements)
	for _, element := range elements {
		if text := textIn(element); text != "" {
			texts = append(texts, text)
		}
	}
	return texts
}

// timeIn returns a claim that is a number of seconds since 1970; zero for other claims.
func timeIn(claim json.RawMessage) time.Time {
	var seconds float64
	if json.Unmarshal(claim, &seconds) != nil || seconds == 0 || math.Abs(seconds) > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(seconds), 0)
}

// invalid returns the error for a token that is not valid. It never contains the token.
func invalid(format string, args ...any) error {
	return &domain.Error{Code: domain.Unauthenticated, Reason: "OIDC_TOKEN_INVALID",
		Message: "the ID token " + fmt.Sprintf(format, args...)}
}

func expired(end time.Time) error {
	return &domain.Error{Code: domain.Unauthenticated, Reason: "OIDC_TOKEN_EXPIRED",
		Message: "the ID token expired at " + end.UTC().Format(time.RFC3339) + ": log in again"}
}

// A cache has the identities of verified tokens by the SHA-256 of the token. An entry is valid for
// the keys that have verified it, so removed keys end it.
type cache struct {
	mu      sync.RWMutex
	entries map[[sha256.Size]byte]entry
}

type entry struct {
	by       *state
	identity *request.Identity
}

// get returns the identity of a token that the keys in the state have verified; nil if there is
// none.
func (c *cache) get(digest [sha256.Size]byte, by *state) *request.Identity {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if found := c.entries[digest]; by != nil && found.by == by {
		return found.identity
	}
	return nil
}

func (c *cache) put(digest [sha256.Size]byte, by *state, identity *request.Identity, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.entries == nil {
		c.entries = map[[sha256.Size]byte]entry{}
	}
	if len(c.entries) >= maxCache {
		for old, e := range c.entries {
			if e.by != by || !now.Before(e.identity.Expires) {
				delete(c.entries, old)
			}
		}
	}
	for old := range c.entries { // any entries: all of them are in use
		if len(c.entries) < maxCache {
			break
		}
		delete(c.entries, old)
	}
	c.entries[digest] = entry{by, identity}
}
