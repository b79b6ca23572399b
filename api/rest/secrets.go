package rest

import (
	"strings"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// MaxSecret is the maximum size of a secret's value, in bytes.
const MaxSecret = 64 << 10

// Secret is the wire type of a secret. Only the response to the request that sets the value
// contains Value.
type Secret struct {
	Name    string `json:"name"`
	KeyName string `json:"keyName"`
	Value   string `json:"value,omitempty" api:"input" query:"-"`
}

var secrets = &resource[domain.Secret, Secret]{
	kind: domain.Secrets, noun: "secret", requires: []string{"name", "keyName"}, reads: request.ManageSecrets,
	writes: request.ManageSecrets, ignoresQuery: true,
	fields:    storedFieldsOf[domain.Secret, Secret]("name", "keyName"),
	dependent: map[string]func(*projections.Row[domain.Secret]) bool{},
	render: func(_ *projections.View, row *projections.Row[domain.Secret], out *Secret) {
		*out = Secret{Name: string(row.Name), KeyName: row.State.KeyName}
	},
	create: func(c *call, q *creation[Secret]) (plan[domain.Secret, Secret], error) {
		sealed, err := sealSecret(c, q.name, q.given, &q.p.Violations, c.sealOnce(q.name))
		command := domain.CreateSecret{KeyName: q.given.KeyName}
		switch {
		case sealed != nil:
			command.Value = *sealed
		case q.given.Value != "":
			command.Value = sealedPlaceholder
		}
		return plan[domain.Secret, Secret]{command, func(out *Secret) { out.Value = q.given.Value }}, err
	},
	update: func(c *call, q *update[domain.Secret, Secret]) (plan[domain.Secret, Secret], error) {
		v := &q.p.Violations
		q.p.Require(!q.mask.Has("value") || q.given.Value != "", "value",
			"must not be empty: give the new value, or delete the secret")
		sealed, err := sealSecret(c, q.name, q.given, v, q.seal)
		return plan[domain.Secret, Secret]{domain.UpdateSecret{KeyName: q.merged.KeyName, Value: sealed},
			func(out *Secret) { out.Value = q.given.Value }}, err
	},
	remove: func(c *call, row *projections.Row[domain.Secret], _ *request.Params) (domain.Command[domain.Secret], error) {
		return domain.DeleteSecret{}, nil
	},
}

var _ = register(secrets.operations)

// sealedPlaceholder stands for a value that was not encrypted because the request has violations,
// so that Decide does not report a missing value.
var sealedPlaceholder = domain.Sealed{KeyID: "none", Ciphertext: []byte{0}}

// sealSecret returns the encrypted value of a create or update; nil if the request has no value. If
// v has violations, it returns sealedPlaceholder.
func sealSecret(c *call, name domain.Name, given *Secret, v *domain.Violations,
	seal func(value string) (*domain.Sealed, error)) (*domain.Sealed, error) {
	if strings.Contains(given.Name, "/") {
		v.Require(given.Name == string(name), "name", "must be an ID, or a resource name such as %s",
			domain.NewName(c.Account, "secrets", "ID"))
	}
	v.Require(len(given.Value) <= MaxSecret, "value", "must have at most %d bytes", MaxSecret)
	if len(*v) > 0 || given.Value == "" {
		return nil, nil
	}
	return seal(given.Value)
}

// seal encrypts a value for the resource name. If the change with the encrypted value is not
// recorded, no resource refers to the value's data key, and the reconciler deletes the key.
func (c *call) seal(name domain.Name, value string) (*domain.Sealed, error) {
	sealed, err := c.Sealer.Seal(c.Ctx, name, []byte(value))
	if err != nil {
		return nil, err
	}
	return &sealed, nil
}

// sealURL encrypts a signed URL for the resource name. It returns nil for a URL without a secret.
// If v has violations, it encrypts nothing.
func (c *call) sealURL(v *domain.Violations, name domain.Name, url domain.SignedURL) (*domain.Sealed, error) {
	switch {
	case !url.HasSecret():
		return nil, nil
	case len(*v) > 0 || len(url) > domain.MaxURL:
		return &sealedPlaceholder, nil
	}
	return c.seal(name, string(url))
}

// sealOnce returns a function that encrypts a value for the resource name in its first call, and
// returns the same encrypted value in later calls.
func (c *call) sealOnce(name domain.Name) func(value string) (*domain.Sealed, error) {
	var sealed *domain.Sealed
	return func(value string) (_ *domain.Sealed, err error) {
		if sealed == nil {
			sealed, err = c.seal(name, value)
		}
		return sealed, err
	}
}
