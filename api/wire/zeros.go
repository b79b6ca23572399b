package wire

import (
	"encoding/json"
	"reflect"
)

// Zeros returns the paths of the numeric fields of the wire type t that a JSON value sets to 0,
// each with the name of the type that has the field: {"trainingConfig.epochs": "TrainingConfig"}.
// After decoding, such a field cannot be told from an absent field. Output-only fields and elements
// of lists and maps are left out.
func Zeros(t reflect.Type, value any) map[string]string {
	zeros := map[string]string{}
	walkGiven(Deref(t), value, "", func(owner string, f Field, at string, one any) bool {
		switch KindOf(Deref(f.Type)) {
		case Int, Count, Float:
			if !f.Output && isZero(one) {
				zeros[at] = owner
			}
		}
		return !f.Output
	})
	return zeros
}

// isZero reports whether a JSON value is the number 0 or the string "0".
func isZero(value any) bool {
	if text, ok := value.(string); ok {
		value = json.Number(text)
	}
	number, ok := value.(json.Number)
	n, err := number.Float64()
	return ok && err == nil && n == 0
}
