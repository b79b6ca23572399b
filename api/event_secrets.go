package api

import (
	"encoding/json"
	"reflect"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
)

// factSecrets says, for each stored type of event, which parts of its body
// nobody is shown: sealed values and hashes, found by their Go types, so that
// a fact written later is covered too.
var factSecrets = func() map[string]wire.Mask {
	secrets := map[string]wire.Mask{}
	for _, kind := range domain.Kinds {
		for name, fact := range kind.EventTypes() {
			secrets[name], _ = secretParts(fact)
		}
	}
	return secrets
}()

var (
	sealedType = reflect.TypeFor[domain.Sealed]()
	bytesType  = reflect.TypeFor[[]byte]()
)

// secretParts is the mask of a type's secret parts; whole is true when all of
// it is secret.
func secretParts(t reflect.Type) (m wire.Mask, whole bool) {
	t = wire.Deref(t)
	if t == sealedType || t == bytesType {
		return nil, true
	}
	switch wire.KindOf(t) {
	case wire.List, wire.Map:
		return secretParts(t.Elem())
	case wire.Object:
		m = wire.Mask{}
		for _, f := range wire.StructOf(t).Fields {
			if below, all := secretParts(f.Type); all || len(below) > 0 {
				m[f.Name] = below
			}
		}
	}
	return m, false
}

// shown is the event without its secrets. A fact of an unknown type shows no
// body at all.
func shown(e eventlog.Event) eventlog.Event {
	secret, known := factSecrets[e.Type]
	if !known {
		e.Data = nil
	}
	if len(secret) == 0 || len(e.Data) == 0 {
		return e
	}
	var body any
	if json.Unmarshal(e.Data, &body) != nil {
		e.Data = nil
		return e
	}
	secret.Drop(body)
	data, err := json.Marshal(body)
	if err != nil {
		data = nil
	}
	e.Data = data
	return e
}
