package api

import (
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
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

	sealed *domain.Sealed // the value, as it is recorded
}

var secrets = &resource[domain.Secret, Secret]{
	kind: domain.Secrets, noun: "secret", requires: []string{"name", "keyName"}, reads: request.ManageSecrets, writes: request.ManageSecrets, unsifted: true,
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
	update: func(_ domain.Secret, merged, given *Secret, changed wire.Mask) (domain.Command[domain.Secret], error) {
		if changed.Has("value") && given.Value == "" {
			var v domain.Violations
			v.Add("value", "must not be empty: give the new value, or delete the secret")
			return nil, v.Err()
		}
		return domain.UpdateSecret{KeyName: merged.KeyName, Value: given.sealed}, nil
	},
	addGiven: func(_ *call, given, out *Secret) { out.Value = given.Value },
	remove: func(c *call, row *projections.Row[domain.Secret], _ *request.Params) (domain.Command[domain.Secret], error) {
		return domain.DeleteSecret{}, nil
	},
}

// unsealed stands for a value that was given and is not sealed, since its
// request is refused for another reason: nobody is told that it is missing.
var unsealed = domain.Sealed{KeyID: "none", Ciphertext: []byte{0}}

// sealSecret encrypts the value that a create or update brings.
func sealSecret(c *call, name domain.Name, given *Secret, _ map[string]string, v *domain.Violations) error {
	if strings.Contains(given.Name, "/") {
		v.Require(given.Name == string(name), "name", "must be an ID, or a name like %s", domain.NewName(c.Account, "secrets", "ID"))
	}
	v.Require(len(given.Value) <= MaxSecret, "value", "must have at most %d bytes", MaxSecret)
	if len(*v) > 0 || given.Value == "" {
		return nil
	}
	return c.seal(name, given.Value, &given.sealed)
}

// seal encrypts a value into out. If the change that it is for is not recorded,
// nothing refers to its data key, and the reconciler erases it.
func (c *call) seal(name domain.Name, value string, out **domain.Sealed) error {
	sealed, err := c.server.Sealer.Seal(c.Ctx, name, []byte(value))
	if err != nil {
		return err
	}
	*out = &sealed
	return nil
}
