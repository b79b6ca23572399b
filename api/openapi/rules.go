package openapi

import (
	"anneal/api/wire"
)

// ownRules constrain the fields of errors.
var ownRules = map[string]wire.Rule{
	"ManagementError.details": {Instead: wire.Schema{"type": "array", "items": wire.Schema{"anyOf": []any{
		wire.Schema{"$ref": "#/components/schemas/ErrorInfo"}, wire.Schema{"$ref": "#/components/schemas/BadRequest"}}}}},
	"ManagementError.code": wire.Between(1, 16),
	"ErrorInfo.@type":      wire.OneOf("ErrorInfo"),
	"BadRequest.@type":     wire.OneOf("BadRequest"),
}

// typeTexts describe the types of this package.
var typeTexts = map[string]string{
	"BadRequest":         "All invalid fields of a request.",
	"ErrorInfo":          "Machine-readable reason of an error.",
	"InferenceErrorBody": "Details of an error.",
	"InferenceError":     "Error on inference and audio paths. All fields are always present.",
	"ManagementError":    "Error on management paths.",
}

// fieldTexts describe the fields of this package's types.
var fieldTexts = map[string]string{
	"ManagementError.code":       "Canonical code (google.rpc.Code), as a number.",
	"ErrorInfo.reason":           "Reason, in UPPER_SNAKE_CASE. Reasons do not change between versions.",
	"ErrorInfo.domain":           "Always anneal.",
	"ErrorInfo.metadata":         "Further values, such as the request ID.",
	"BadRequest.fieldViolations": "Violations, one for each invalid field.",
	"InferenceErrorBody.type":    "Kind of the error, such as invalid_request_error.",
}

var ownDocumentation = Documentation{ownRules, fieldTexts, typeTexts}
