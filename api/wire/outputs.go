package wire

import "reflect"

// Outputs returns the values that a JSON value has in output-only fields of the wire type t, by
// field path. Normalize ignores these values. Elements of lists and maps are left out.
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
