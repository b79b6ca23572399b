package api

import (
	"reflect"
	"time"

	"anneal/api/request"
)

// A protectedResource tells clients how they log in: the metadata of RFC 9728, and the client of the
// command line at the identity provider.
type protectedResource struct {
	Resource             string   `json:"resource"`
	AuthorizationServers []string `json:"authorization_servers,omitempty"`
	BearerMethods        []string `json:"bearer_methods_supported"`
	ClientID             string   `json:"anneal_client_id,omitempty"`
}

// A caller is who sends a request: an API key, or the user of an identity provider.
type caller struct {
	Name       string          `json:"name"`
	Account    string          `json:"account"`
	Role       string          `json:"role"`
	Operator   bool            `json:"operator,omitempty"`
	ExpireTime *time.Time      `json:"expireTime,omitempty"`
	Accounts   []callerAccount `json:"accounts"`
}

type callerAccount struct {
	Account string `json:"account"`
	Role    string `json:"role"`
}

// identityOperations returns the operations that say how to log in, and who has logged in.
func (s *Server) identityOperations() []request.Operation {
	all := []request.Operation{
		{ID: "getProtectedResource", Method: "GET", Path: "/.well-known/oauth-protected-resource", Tag: "system",
			Summary: "Read how to log in, as RFC 9728 defines it",
			Description: "Without a login by OpenID Connect, the response has no authorization_servers. anneal_client_id is " +
				"the client ID of the command line.",
			Gate: request.Everyone, Response: reflect.TypeFor[protectedResource](), Handle: s.protectedResource},
		{ID: "getCaller", Method: "GET", Path: "/v1/caller", Tag: "system",
			Summary:     "Read the account and the role of the credential that the request is sent with",
			Description: "The credential is an API key, or an ID token of the server's identity provider.",
			Gate:        request.WithKey, Permission: request.Infer, Response: reflect.TypeFor[caller](), Handle: callerOf},
	}
	if s.Login != nil {
		all = append(all, s.Login.Operations()...)
	}
	return all
}

func (s *Server) protectedResource(c *request.Call) (any, error) {
	if err := c.Params().Violations.Err(); err != nil {
		return nil, err
	}
	about := protectedResource{Resource: s.Address, BearerMethods: []string{"header"}}
	if s.Login != nil {
		about.AuthorizationServers, about.ClientID = []string{s.Login.Issuer}, s.Login.CommandLineClient()
	}
	return about, nil
}

func callerOf(c *request.Call) (any, error) {
	if err := c.Params().Violations.Err(); err != nil {
		return nil, err
	}
	p := c.Principal
	out := caller{Name: string(p.Key), Account: p.Account, Role: p.Role, Operator: p.IsOperator(),
		Accounts: []callerAccount{}}
	if row, ok := c.View().APIKeys.Get(p.Key); ok {
		out.ExpireTime = row.State.ExpireTime
	} else if !p.Expires.IsZero() {
		out.ExpireTime = &p.Expires
	}
	for _, grant := range request.AccountsOf(c) {
		out.Accounts = append(out.Accounts, callerAccount{grant.Account, grant.Role})
	}
	return out, nil
}

// identityTexts describe the fields of this file's wire types.
var identityTexts = map[string]string{
	"ProtectedResource.resource":                 "URL of this server.",
	"ProtectedResource.authorization_servers":    "Issuer of the ID tokens that the server accepts.",
	"ProtectedResource.bearer_methods_supported": "Where requests have the credential: in the header Authorization.",
	"ProtectedResource.anneal_client_id":         "Client ID of the command line at the identity provider.",
	"Caller.name": "Name of the API key, or of the user in the account, such as " +
		"accounts/acme/users/alice@example.com. Events have it as their actor.",
	"Caller.account":        "Account of requests whose path has no account, such as requests to models.",
	"Caller.role":           "Role in that account.",
	"Caller.operator":       "Whether the caller is the operator, who has all permissions in all accounts.",
	"Caller.expireTime":     "When the API key or the ID token expires.",
	"Caller.accounts":       "The accounts that the caller may use, with the role in each.",
	"CallerAccount.account": "ID of the account.",
	"CallerAccount.role":    "Role in the account.",
}
