package api

import (
	"cmp"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// MaxSecret bounds a secret's value, in bytes.
const MaxSecret = 64 << 10

// Secret is a secret on the wire. Its value is in the answers to the create
// and the update that brought it and never again.
type Secret struct {
	Name    string `json:"name"`
	KeyName string `json:"keyName"`
	Value   string `json:"value,omitempty" api:"input" query:"-"`

	sealed  *domain.Sealed
	version int // that sealed is
}

var secrets = &resource[domain.Secret, Secret]{
	kind: domain.Secrets, noun: "secret", requires: []string{"name", "keyName"}, reads: toGuard, writes: toGuard, unsifted: true,
	fields:  storedFieldsOf[domain.Secret, Secret]("name", "keyName"),
	givenID: func(given *Secret) string { return given.Name[strings.LastIndexByte(given.Name, '/')+1:] },
	render: func(_ *projections.View, row *projections.Row[domain.Secret], out *Secret) {
		*out = Secret{Name: string(row.Name), KeyName: row.State.KeyName}
	},
	prepare: sealSecret,
	create: func(_ *call, _ domain.Name, given *Secret) domain.Command[domain.Secret] {
		command := domain.CreateSecret{KeyName: given.KeyName}
		switch {
		case given.sealed != nil:
			command.Value = *given.sealed
		case given.Value != "":
			command.Value = unsealed
		}
		return command
	},
	update: func(old domain.Secret, merged, given *Secret, changed mask) (domain.Command[domain.Secret], error) {
		switch {
		case changed.has("value") && given.Value == "":
			var v domain.Violations
			v.Add("value", "must not be empty: give the new value, or delete the secret")
			return nil, v.Err()
		case given.sealed != nil && given.version != old.Version+1:
			return nil, domain.Faultf(domain.Aborted, "the secret was changed by somebody else at the same moment: try again")
		}
		return domain.UpdateSecret{KeyName: merged.KeyName, Value: given.sealed}, nil
	},
	sealed:   func(s domain.Secret) []domain.Sealed { return []domain.Sealed{s.Value} },
	addGiven: func(_ *call, given, out *Secret) { out.Value = given.Value },
	remove: func(c *call, row *projections.Row[domain.Secret], _ *params) (domain.Command[domain.Secret], error) {
		return domain.DeleteSecret{}, inUse("secret", row.Name, jobsWith(c.snapshot(), row.Name))
	},
	// The data key goes first: should the server stop in between, what is left
	// is a secret without a value, which can be deleted again, and not a value
	// that nothing leads to any more.
	before: func(c *call, row *projections.Row[domain.Secret]) error {
		if !row.State.HasValue() {
			return nil
		}
		ctx, cancel := c.lasting()
		defer cancel()
		return c.Sealer.Shred(ctx, row.State.Value.KeyID)
	},
}

// unsealed stands for a value that was given and is not sealed, since its
// request is refused for another reason: nobody is told that it is missing.
var unsealed = domain.Sealed{KeyID: "none", Ciphertext: []byte{0}}

// sealSecret encrypts the value that a create or update brings. A value is
// sealed for its key name, so a new key name seals the old value anew.
func sealSecret(c *call, name domain.Name, given *Secret, _ map[string]string, v *domain.Violations) error {
	if strings.Contains(given.Name, "/") {
		v.Require(given.Name == string(name), "name", "must be an ID, or a name like %s", domain.NewName(c.account, "secrets", "ID"))
	}
	v.Require(len(given.Value) <= MaxSecret, "value", "must have at most %d bytes", MaxSecret)
	if len(*v) > 0 {
		return nil
	}
	row, exists := c.snapshot().Secrets.Get(name)
	keyName, value := given.KeyName, given.Value
	if given.version = 1; exists {
		old := row.State
		given.version, keyName = old.Version+1, cmp.Or(keyName, old.KeyName)
		if value == "" && keyName != old.KeyName && old.HasValue() {
			opened, err := c.Sealer.Open(c.ctx, name, old.KeyName, old.Version, old.Value)
			if err != nil {
				return err
			}
			value = opened.Reveal()
		}
	}
	if value == "" {
		return nil
	}
	return c.seal(name, keyName, given.version, value, &given.sealed)
}

// seal encrypts a value into out, and shreds it again when the change that it
// is for is refused.
func (c *call) seal(name domain.Name, keyName string, version int, value string, out **domain.Sealed) error {
	sealed, err := c.Sealer.Seal(c.ctx, name, keyName, version, []byte(value))
	if err != nil {
		return err
	}
	c.onRefusal(func() { c.shred([]domain.Sealed{sealed}, nil) })
	*out = &sealed
	return nil
}

// shred deletes the data keys of values that nothing needs any more. What
// fails here leaves a key without use: it is noted.
func (c *call) shred(old, kept []domain.Sealed) {
	ctx, cancel := c.lasting()
	defer cancel()
	for _, one := range old {
		if one.KeyID == "" || slices.ContainsFunc(kept, func(k domain.Sealed) bool { return k.KeyID == one.KeyID }) {
			continue
		}
		if err := c.Sealer.Shred(ctx, one.KeyID); err != nil {
			c.Logger.Warn("a data key that nothing uses was left", "request", c.id, "error", err)
		}
	}
}
