package domain_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/assert"

	"anneal/domain"
	"anneal/internal/testutil"
)

func TestSecretValueIsNotShown(t *testing.T) {
	const canary = "canary-5e7d"
	secret := domain.SecretValue(canary)
	holder := struct {
		Value  domain.SecretValue
		Values map[string]domain.SecretValue
	}{secret, map[string]domain.SecretValue{"k": secret}}
	var shown bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d", "%T %v"} {
		fmt.Fprintf(&shown, verb+"\n", secret)
		fmt.Fprintf(&shown, verb+"\n", holder)
		fmt.Fprintf(&shown, verb+"\n", &holder)
	}
	fmt.Fprintln(&shown, fmt.Errorf("wrong: %w, %v", assert.AnError, secret))
	slog.New(slog.NewTextHandler(&shown, nil)).Info("x", "secret", secret, "holder", holder)
	slog.New(slog.NewJSONHandler(&shown, nil)).Info("x", "secret", secret, "holder", holder)
	data := testutil.Marshal(t, holder)
	shown.Write(data)
	assert.NotContains(t, shown.String(), canary)
	assert.NotContains(t, shown.String(), fmt.Sprintf("%x", canary))
	assert.Contains(t, string(data), "[redacted]")
	assert.Equal(t, canary, secret.Reveal())
}
