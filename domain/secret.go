package domain

import (
	"bytes"
	"regexp"
	"strconv"
	"time"
)

// A secret holds a credential for another service. Its value is sealed before it reaches the domain
// and is never shown to a user.
//
//	(none) --CreateSecret--> live --UpdateSecret--> live --DeleteSecret--> (none)
var Secrets = referenceable(NewKind("secrets", map[string]Event[Secret]{
	"secret.created.v1": SecretCreated{},
	"secret.updated.v1": SecretUpdated{},
	"secret.deleted.v1": SecretDeleted{},
}), "secret.", func(x *Secret) *Deletion { return &x.Deletion })

// Secret is the state of one secret.
type Secret struct {
	Deletion
	KeyName string `json:"keyName"` // name of the environment variable that passes the value to code
	Value   Sealed `json:"value"`
	// number of the current value, from 1; 0 without a value. Values of Sealed.Scheme 0 are bound
	// to this number.
	Version int `json:"version"`
}

// Exists implements State.
func (s Secret) Exists() bool { return s.KeyName != "" }

// HasValue reports whether the secret has a value. A secret can be created without a value.
func (s Secret) HasValue() bool { return len(s.Value.Ciphertext) > 0 }

type SecretCreated struct {
	KeyName string `json:"keyName"`
	Value   Sealed `json:"value"`
}

func (e SecretCreated) Evolve(s *Secret) {
	*s = Secret{KeyName: e.KeyName}
	if len(e.Value.Ciphertext) > 0 {
		s.setValue(e.Value)
	}
}

type SecretUpdated struct {
	KeyName string  `json:"keyName"`
	Value   *Sealed `json:"value,omitempty"` // new value; nil leaves the value unchanged
}

func (e SecretUpdated) Evolve(s *Secret) {
	s.KeyName = e.KeyName
	if e.Value != nil {
		s.setValue(*e.Value)
	}
}

// setValue replaces the value of the secret. A value of Sealed.Scheme 0 is bound to the key name
// and the version that the secret has after the event.
func (s *Secret) setValue(value Sealed) {
	s.Value, s.Version = value, s.Version+1
	if value.Scheme == 0 {
		s.Value.Bound = s.KeyName + "\x00" + strconv.Itoa(s.Version)
	}
}

type SecretDeleted struct{}

func (SecretDeleted) Evolve(s *Secret) { *s = Secret{} }

var keyNamePattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]{0,127}$`)

func checkKeyName(v *Violations, keyName string) {
	v.Require(keyNamePattern.MatchString(keyName), "keyName",
		"must be 1 to 128 letters, digits, _ or - and begin with a letter or _")
}

// CreateSecret creates the secret, with its sealed value if it has one.
type CreateSecret struct {
	KeyName string
	Value   Sealed
}

func (c CreateSecret) Decide(s Secret, _ time.Time) (Event[Secret], error) {
	if s.Exists() {
		return nil, alreadyExists("a secret")
	}
	var v Violations
	checkKeyName(&v, c.KeyName)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return SecretCreated(c), nil
}

// UpdateSecret changes the key name, the value, or both.
type UpdateSecret struct {
	KeyName string
	Value   *Sealed
}

func (c UpdateSecret) Decide(s Secret, _ time.Time) (Event[Secret], error) {
	if !s.Exists() {
		return nil, notFound("secret")
	}
	sameValue := c.Value == nil || s.HasValue() && bytes.Equal(c.Value.Ciphertext, s.Value.Ciphertext)
	if c.KeyName == s.KeyName && sameValue {
		return nil, nil
	}
	var v Violations
	checkKeyName(&v, c.KeyName)
	v.Require(c.Value == nil || len(c.Value.Ciphertext) > 0, "value", "must not be empty")
	if err := v.Err(); err != nil {
		return nil, err
	}
	if sameValue {
		c.Value = nil
	}
	return SecretUpdated(c), nil
}

// DeleteSecret deletes the secret. The reconciler erases the data key of its value once the event
// is durable.
type DeleteSecret struct{}

func (DeleteSecret) Decide(s Secret, now time.Time) (Event[Secret], error) {
	if !s.Exists() {
		return nil, notFound("secret")
	}
	return SecretDeleted{}, s.mayDelete(now)
}
