package wire

import "reflect"

// Outputs returns the values that a JSON value gives to the output-only fields of the wire type t, by
// the path of the field. Normalize ignores these values. Elements of lists and maps are left out.
func Outputs(t reflect.Type, value any) map[string]any {
	outputs := map[string]any{}
	walkGiven(Deref(t), value, "", func(_ string, f Field, at string, one any) bool {
		if f.Output {
			outputs[at] = one
		}
		return !f.Output
	})
	return outputs
}
