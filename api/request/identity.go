package request

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Tokens verifies ID tokens of an identity provider.
type Tokens interface {
	// Verify returns the holder of an ID token, or an error if the token is invalid or expired, or the
	// keys of the provider cannot be read.
	Verify(ctx context.Context, token string) (*Identity, error)
}

// An Identity is the holder of a verified ID token. It is shared by requests, so it never changes.
type Identity struct {
	User    string    // name of the user at the identity provider
	Groups  []string  // groups of the user at the identity provider
	Grants  []Grant   // what the groups permit, in the order of the server's rules; one for each account
	Expires time.Time // end of the token, including the tolerated difference of the clocks
}

// A Grant is a role in an account. The operator has the role admin in the account domain.System.
type Grant struct{ Account, Role string }

const reasonUnmapped = "OIDC_GROUP_UNMAPPED"

// IsToken reports whether a credential has the form of an ID token, a signed JSON Web Token.
func IsToken(credential string) bool {
	return strings.HasPrefix(credential, "ey") && strings.Count(credential, ".") == 2
}

// principalOf returns the principal of an identity for a request to an account; "" stands for a
// request whose path has no account, which gets the first grant. The operator is the operator in
// every request. exists reports whether an account exists. It returns an error if the identity has
// no grant.
func (i *Identity) principalOf(account string, exists func(account string) bool) (Principal, error) {
	if len(i.Grants) == 0 {
		return Principal{}, Forbidden(reasonUnmapped, "no --oidc-group of the server maps a group of %s (%s) to an account: "+
			"ask the operator to map one of your groups, or the administrator of the identity provider to add you to a mapped "+
			"group", i.User, groupsOf(i.Groups))
	}
	var missing []string
	chosen := -1
	for at, grant := range i.Grants {
		switch {
		case grant.Account != domain.System && !exists(grant.Account):
			missing = append(missing, "accounts/"+grant.Account)
			continue
		case chosen < 0, grant.Account == account && i.Grants[chosen].Account != domain.System,
			grant.Account == domain.System:
			chosen = at
		}
	}
	if chosen < 0 {
		return Principal{}, Forbidden("OIDC_ACCOUNT_MISSING", "--oidc-group maps the groups of %s to %s, which does not "+
			"exist: ask the operator to create the account", i.User, strings.Join(missing, " and "))
	}
	grant := i.Grants[chosen]
	return Principal{Key: domain.UserName(grant.Account, i.User), Account: grant.Account, Role: grant.Role,
		Expires: i.Expires}, nil
}

// groupsOf returns groups for a message.
func groupsOf(groups []string) string {
	const maxGroups = 10
	switch {
	case len(groups) == 0:
		return "the token has no groups"
	case len(groups) > maxGroups:
		return fmt.Sprintf("groups: %s and %d more", strings.Join(groups[:maxGroups], ", "), len(groups)-maxGroups)
	}
	return "groups: " + strings.Join(groups, ", ")
}

// AccountsOf returns the accounts of the caller that exist, with the role in each.
func AccountsOf(c *Call) (grants []Grant) {
	if c.identity == nil {
		return []Grant{{c.Principal.Account, c.Principal.Role}}
	}
	return slices.DeleteFunc(slices.Clone(c.identity.Grants),
		func(g Grant) bool { return g.Account != domain.System && !hasAccount(c.View(), g.Account) })
}

// hasAccount reports whether an account exists.
func hasAccount(v *projections.View, account string) bool {
	_, ok := v.Accounts.Get(domain.NewName(account, "accounts", account))
	return ok
}

// authenticateToken returns the principal of an ID token.
func authenticateToken(c *Call, token string) (Principal, error) {
	identity, err := c.Tokens.Verify(c.Ctx, token)
	if err != nil {
		return Principal{}, err
	}
	c.identity = identity
	account := c.Account
	if c.Direct != "" {
		account = c.Direct.Account()
	}
	return identity.principalOf(account, func(account string) bool { return hasAccount(c.View(), account) })
}

// RefusedUser returns the user of a verified ID token that permits nothing, because no group of the
// user is mapped to an account that exists: users/NAME, without an account. It returns "" for other
// calls.
func RefusedUser(c *Call) string {
	if c.identity == nil || c.Principal.Key != "" {
		return ""
	}
	return "users/" + url.PathEscape(c.identity.User)
}

// IsValid reports whether a principal that was authenticated earlier would still be: its API key
// exists and has not expired, or its ID token has not expired and its account exists.
func IsValid(c *Call) bool {
	if _, isUser := domain.UserOf(c.Principal.Key); isUser {
		exists := c.Principal.Account == domain.System || hasAccount(c.World.View(), c.Principal.Account)
		return exists && c.Now().Before(c.Principal.Expires)
	}
	state, _ := c.World.Row(c.Principal.Key)
	key, _ := state.(domain.APIKey)
	return key.Exists() && !key.Expired(c.Now())
}
