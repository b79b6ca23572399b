package api

import (
	"encoding/json"
	"reflect"

	"anneal/domain"
	"anneal/eventlog"
)

// factSecrets says, for each stored type of event, which parts of its body
// nobody is shown: sealed values and hashes, found by their Go types, so that
// a fact written later is covered too.
var factSecrets = func() map[string]mask {
	secrets := map[string]mask{}
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
func secretParts(t reflect.Type) (m mask, whole bool) {
	t = plain(t)
	if t == sealedType || t == bytesType {
		return nil, true
	}
	switch sortOf(t) {
	case listValue, mapValue:
		return secretParts(t.Elem())
	case objectValue:
		m = mask{}
		for _, f := range shapeOf(t).fields {
			if below, all := secretParts(f.typ); all || len(below) > 0 {
				m[f.name] = below
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
	secret.drop(body)
	data, err := json.Marshal(body)
	if err != nil {
		data = nil
	}
	e.Data = data
	return e
}

// drop takes what the mask names out of a JSON value.
func (m mask) drop(value any) {
	switch v := value.(type) {
	case map[string]any:
		for name, below := range m {
			if len(below) == 0 {
				delete(v, name)
			} else {
				below.drop(v[name])
			}
		}
	case []any:
		for _, element := range v {
			m.drop(element)
		}
	}
}
