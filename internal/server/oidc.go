package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"anneal/api/oidc"
	"anneal/internal/certs"
)

// oidcFlags configure the login of users at an OpenID Connect provider.
type oidcFlags struct {
	issuer, clientID, cliClientID string
	secretFile, caFile            string
	usernameClaim, groupsClaim    string
	groups                        []string // each rule as GROUP=TARGET
}

func (o *oidcFlags) add(f *pflag.FlagSet) {
	f.StringVar(&o.issuer, "oidc-issuer", "",
		"`URL` of an OpenID Connect provider whose users may log in to the console and the command line (default: only "+
			"API keys)")
	f.StringVar(&o.clientID, "oidc-client-id", "",
		"client `ID` of this server at the provider, whose redirect URI is PUBLIC-URL/oidc/callback")
	f.StringVar(&o.secretFile, "oidc-client-secret-file", "",
		"`FILE` with the secret of the client (default: a public client, which only PKCE protects)")
	f.StringVar(&o.cliClientID, "oidc-cli-client-id", "",
		"client `ID` of the command line, a public client that may use the device authorization grant (default: "+
			"--oidc-client-id)")
	f.StringVar(&o.groupsClaim, "oidc-groups-claim", "groups", "`CLAIM` of ID tokens with the groups of the user")
	f.StringVar(&o.usernameClaim, "oidc-username-claim", "email",
		"`CLAIM` of ID tokens with the name of the user, which events show; email must be verified by the provider")
	f.StringArrayVar(&o.groups, "oidc-group", nil,
		"`GROUP=accounts/ACCOUNT:ROLE` or GROUP=operator: what members of a group of the provider may do; repeat the flag "+
			"for more")
	f.StringVar(&o.caFile, "oidc-ca", "",
		"`FILE` with certificate authorities to trust for the provider, in addition to the system's")
}

// check returns an error with all violations of the flags.
func (o *oidcFlags) check() error {
	var wrong []error
	violate := func(format string, args ...any) { wrong = append(wrong, fmt.Errorf(format, args...)) }
	if o.issuer == "" {
		for flag, given := range map[string]bool{"--oidc-client-id": o.clientID != "", "--oidc-group": len(o.groups) > 0,
			"--oidc-client-secret-file": o.secretFile != "", "--oidc-cli-client-id": o.cliClientID != "",
			"--oidc-ca": o.caFile != ""} {
			if given {
				violate("%s requires --oidc-issuer", flag)
			}
		}
		return errors.Join(wrong...)
	}
	if err := oidc.CheckIssuer(o.issuer); err != nil {
		violate("--oidc-issuer %q %w", o.issuer, err)
	}
	if o.clientID == "" {
		violate("--oidc-issuer requires --oidc-client-id")
	}
	if o.groupsClaim == "" || o.usernameClaim == "" {
		violate("--oidc-groups-claim and --oidc-username-claim must not be empty")
	}
	if len(o.groups) == 0 {
		violate("--oidc-issuer requires --oidc-group, since without a mapped group nobody can log in")
	}
	for _, text := range o.groups {
		if _, err := oidc.ParseRule(text); err != nil {
			violate("--oidc-group %q %w", text, err)
		}
	}
	return errors.Join(wrong...)
}

// maxSecret is the maximum size of a client secret, in bytes.
const maxSecret = 4096

// options returns the options of the provider that the flags configure; nil without --oidc-issuer.
func (o *oidcFlags) options() (*oidc.Options, error) {
	if o.issuer == "" {
		return nil, nil
	}
	out := &oidc.Options{Issuer: o.issuer, ClientID: o.clientID, CLIClientID: o.cliClientID, GroupsClaim: o.groupsClaim,
		UsernameClaim: o.usernameClaim, Now: time.Now, Logger: slog.New(slog.DiscardHandler)}
	for _, text := range o.groups {
		rule, err := oidc.ParseRule(text)
		if err != nil {
			return nil, err
		}
		out.Rules = append(out.Rules, rule)
	}
	if o.secretFile != "" {
		file, err := os.Open(o.secretFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-client-secret-file: %w", err)
		}
		defer file.Close()
		secret, err := io.ReadAll(io.LimitReader(file, maxSecret))
		if out.Secret = strings.TrimSpace(string(secret)); err != nil || out.Secret == "" {
			return nil, fmt.Errorf("--oidc-client-secret-file %s: %w", o.secretFile, cmp.Or(err, errors.New("is empty")))
		}
	}
	if o.caFile != "" {
		config, err := certs.ClientConfig(nil, o.caFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca: %w", err)
		}
		out.TLS = config
	}
	return out, nil
}

// openLogin returns the identity provider of the server, and starts to read its keys; nil if there is
// none.
func openLogin(s *Server, key []byte) (*oidc.Provider, error) {
	options, err := s.flags.oidc.options()
	if options == nil || err != nil {
		return nil, err
	}
	options.Address, options.Key, options.Logger = s.context.Address, key, s.logger
	provider := oidc.New(*options)
	s.services.start("login", provider.Run)
	return provider, nil
}

// maxClockDifference is the difference of the clocks that the doctor accepts. Tokens are refused from a
// greater difference than twice this one on.
const maxClockDifference = 15 * time.Second

// checkLogin checks whether the identity provider is reachable, and compares its clock with this one.
func checkLogin(ctx context.Context, flags Flags) Finding {
	options, err := flags.oidc.options()
	const advice = "check the network, the flags --oidc-issuer and --oidc-ca, and the certificate of the provider"
	switch {
	case err != nil:
		return failed(err, "correct the file")
	case options == nil:
		return skipped("this server accepts API keys only")
	}
	if err := oidc.New(*options).Refresh(ctx); err != nil {
		return failed(err, advice)
	}
	difference, err := clockDifference(ctx, options.Issuer, options.TLS)
	if err != nil {
		return failed(err, advice)
	}
	if difference.Abs() > maxClockDifference {
		return Finding{Result: CheckWarning, Detail: fmt.Sprintf("the clock of %s differs from this one by %s",
			options.Issuer, difference.Round(time.Second)), Advice: "synchronize both clocks, or tokens are refused"}
	}
	return ok("the provider " + options.Issuer + " is reachable, and its clock agrees with this one")
}

// clockDifference returns how far the clock of a provider is ahead of this one. It is 0 if the provider
// does not send the time.
func clockDifference(ctx context.Context, issuer string, config *tls.Config) (time.Duration, error) {
	client := certs.HTTPClient(config)
	client.Timeout = 10 * time.Second
	request, err := http.NewRequestWithContext(ctx, http.MethodGet,
		strings.TrimSuffix(issuer, "/")+"/.well-known/openid-configuration", nil)
	if err != nil {
		return 0, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	at, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return 0, nil
	}
	return time.Until(at), nil
}
