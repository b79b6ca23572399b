package secrets

import (
	"context"
	"strings"

	"anneal/domain"
	"anneal/eventlog"
)

// OpenSecret decrypts what was sealed for a resource.
type OpenFunc func(ctx context.Context, name domain.Name, sealed domain.Sealed) (domain.SecretValue, error)

// A Secrets opens secrets for code that names them.
type Resolver struct {
	Rows eventlog.Rows
	Open OpenFunc
}

// maxSecrets bounds what code is given, in bytes, so that it fits into a message.
const maxSecrets = 256 << 10

// Values are the values of secrets by their key names, for the code of an
// account. field is where they are named.
func (s Resolver) Values(ctx context.Context, account, field string, names []string) (map[string]string, error) {
	values, size := map[string]string{}, 0
	for _, text := range names {
		name := domain.Name(text)
		state, _ := s.Rows.Row(name)
		secret, ok := state.(domain.Secret)
		if !ok || name.Account() != account {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: %s is no secret of accounts/%s (any more): create it, or name another", field, name, account)
		}
		if _, twice := values[secret.KeyName]; twice {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: two of them have the key name %s: name one", field, secret.KeyName)
		}
		if !secret.HasValue() {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: %s has no value yet: update it with one", field, name)
		}
		value, err := s.Open(ctx, name, secret.Value)
		if err != nil {
			return nil, err
		}
		if size += len(value.Reveal()); size > maxSecrets {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: their values have more than %d bytes together: name fewer", field, maxSecrets)
		}
		values[secret.KeyName] = value.Reveal()
	}
	return values, nil
}

// Redact takes values out of a text that is shown.
func Redact(text string, values map[string]string) string {
	for _, value := range values {
		if len(value) >= 4 { // shorter ones would be found everywhere
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
	}
	return text
}
