// Package oidc authenticates users by ID tokens of an OpenID Connect provider, and maps their
// groups to accounts and roles.
package oidc

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/domain"
)

// Options configure a Provider.
type Options struct {
	Issuer   string // URL of the provider, which its tokens contain
	ClientID string // client of the console, and of the command line unless CLIClientID is set
	// CLIClientID is the client of the command line, which has no secret; "" stands for ClientID.
	CLIClientID   string
	Secret        string // of the client ClientID; "" for a public client
	GroupsClaim   string // claim of an ID token with the groups of the user
	UsernameClaim string // claim of an ID token with the name of the user
	Rules         []Rule
	Address       string      // URL of this server
	TLS           *tls.Config // for connections to the provider; nil means the default
	Key           []byte      // secret key from which the key that signs cookies is derived
	Now           func() time.Time
	Logger        *slog.Logger
}

// A Rule maps a group of the provider to an account and a role.
type Rule struct {
	Group string
	request.Grant
}

// operatorTarget stands for the operator in a rule.
const operatorTarget = "operator"

// ParseRule returns the rule of a text GROUP=accounts/ACCOUNT:ROLE or GROUP=operator.
func ParseRule(text string) (Rule, error) {
	at := strings.LastIndex(text, "=")
	if at <= 0 {
		return Rule{}, errors.New("must be GROUP=accounts/ACCOUNT:ROLE or GROUP=operator")
	}
	group, target := text[:at], text[at+1:]
	if target == operatorTarget {
		return Rule{group, request.Grant{Account: domain.System, Role: domain.RoleAdmin}}, nil
	}
	account, role, _ := strings.Cut(target, ":")
	name, ok := domain.ParseName(account, "accounts")
	switch {
	case !ok:
		return Rule{}, fmt.Errorf("must be GROUP=accounts/ACCOUNT:ROLE or GROUP=operator, but maps to %q", target)
	case name.Account() == domain.System:
		return Rule{}, fmt.Errorf("must not map to accounts/%s: write GROUP=operator", domain.System)
	case !slices.Contains(domain.Roles, role):
		return Rule{}, fmt.Errorf("has the role %q, which %s", role, domain.OneOfRule(role, domain.Roles))
	}
	return Rule{group, request.Grant{Account: name.Account(), Role: role}}, nil
}

// CheckIssuer returns an error unless the issuer is a URL that OpenID Connect permits. Without TLS
// it must be on this machine.
func CheckIssuer(issuer string) error {
	u, err := url.Parse(issuer)
	if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("must be the URL of an OpenID Connect provider, such as https://login.example.com/realms/main")
	}
	return CheckEndpoint(issuer)
}

// CheckEndpoint returns an error unless a URL has TLS or is on this machine.
func CheckEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	if err != nil || u.Host == "" {
		return errors.New("must be a URL")
	}
	host := u.Hostname()
	local := host == "localhost" || net.ParseIP(host).IsLoopback()
	if u.Scheme != "https" && !(u.Scheme == "http" && local) {
		return errors.New("must begin with https://, so that nobody can replace the keys of the provider")
	}
	return nil
}

// CommandLineClient returns the client ID of the command line.
func (o Options) CommandLineClient() string { return cmp.Or(o.CLIClientID, o.ClientID) }

// grantsOf returns what the rules permit to members of the groups, in the order of the rules: for
// each account the role that comes first in domain.Roles.
func grantsOf(rules []Rule, groups []string) (grants []request.Grant) {
	for _, rule := range rules {
		if !slices.Contains(groups, rule.Group) {
			continue
		}
		at := slices.IndexFunc(grants, func(g request.Grant) bool { return g.Account == rule.Account })
		switch {
		case at < 0:
			grants = append(grants, rule.Grant)
		case slices.Index(domain.Roles, rule.Role) < slices.Index(domain.Roles, grants[at].Role):
			grants[at].Role = rule.Role
		}
	}
	return grants
}
