package secrets

import (
	"context"
	"strings"

	"anneal/domain"
	"anneal/eventlog"
)

// A Resolver looks up and decrypts the values of secrets.
type Resolver struct {
	Rows eventlog.Rows
	Open OpenFunc
	By   Reader
}

// maxSecrets is the maximum total size in bytes of the values for one program, so that they fit
// into one message to an agent.
const maxSecrets = 256 << 10

// Values returns the values of the secrets with these names, by key name, for code of an account.
// field is the field of the request that lists the names, for error messages.
func (s Resolver) Values(ctx context.Context, account, field string, names []string) (map[string]string, error) {
	values, size := map[string]string{}, 0
	for _, text := range names {
		name := domain.Name(text)
		state, _ := s.Rows.Row(name)
		secret, ok := state.(domain.Secret)
		if !ok || name.Account() != account {
			return nil, domain.Errorf(domain.FailedPrecondition,
				"%s: secret %s does not exist in accounts/%s: create it or use another secret", field, name, account)
		}
		if _, twice := values[secret.KeyName]; twice {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: two secrets have the key name %s: remove one", field,
				secret.KeyName)
		}
		if !secret.HasValue() {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: %s has no value: set one", field, name)
		}
		value, err := s.Open(ctx, s.By, name, secret.Value)
		if err != nil {
			return nil, err
		}
		if size += len(value.Reveal()); size > maxSecrets {
			return nil, domain.Errorf(domain.FailedPrecondition,
				"%s: the values have more than %d bytes together: name fewer secrets",
				field, maxSecrets)
		}
		values[secret.KeyName] = value.Reveal()
	}
	return values, nil
}

// Redact returns text with "[redacted]" in the place of each of the values, to be shown to users.
func Redact(text string, values map[string]string) string {
	for _, value := range values {
		if len(value) >= 4 { // a shorter value would also match other text
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
	}
	return text
}
