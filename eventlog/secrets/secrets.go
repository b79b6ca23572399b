package secrets

import (
	"context"
	"strings"

	"anneal/domain"
	"anneal/eventlog"
)

// A Resolver looks up secrets and decrypts their values for code.
type Resolver struct {
	Rows eventlog.Rows
	Open OpenFunc
	By   Reader
}

// maxSecrets is the maximum total size in bytes of the values for one program. They must fit into
// one message to an agent.
const maxSecrets = 256 << 10

// Values returns the values of secrets by their key names. names are resource names, and the
// secrets must belong to account. field is the request field with the names, for error messages.
func (s Resolver) Values(ctx context.Context, account, field string, names []string) (map[string]string, error) {
	values, size := map[string]string{}, 0
	for _, text := range names {
		name := domain.Name(text)
		state, _ := s.Rows.Row(name)
		secret, ok := state.(domain.Secret)
		if !ok || name.Account() != account {
			return nil, domain.Errorf(domain.FailedPrecondition,
				"%s: secret %s does not exist in account %s: create it or name another secret", field, name, account)
		}
		if _, twice := values[secret.KeyName]; twice {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: two of the secrets have the key name %s: remove one "+
				"of them from the list", field,
				secret.KeyName)
		}
		if !secret.HasValue() {
			return nil, domain.Errorf(domain.FailedPrecondition, "%s: secret %s has no value: set its value", field, name)
		}
		value, err := s.Open(ctx, s.By, name, secret.Value)
		if err != nil {
			return nil, err
		}
		if size += len(value.Reveal()); size > maxSecrets {
			return nil, domain.Errorf(domain.FailedPrecondition,
				"%s: the values of the secrets have more than %d bytes in total: name fewer secrets",
				field, maxSecrets)
		}
		values[secret.KeyName] = value.Reveal()
	}
	return values, nil
}

// Redact replaces each of the values in text by "[redacted]", so that the text can be shown to
// users.
func Redact(text string, values map[string]string) string {
	for _, value := range values {
		if len(value) >= 4 { // a shorter value would also match unrelated text
			text = strings.ReplaceAll(text, value, "[redacted]")
		}
	}
	return text
}
