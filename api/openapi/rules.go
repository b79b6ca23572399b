package openapi

import (
	"anneal/api/wire"
)

// ownRules constrains the values of the fields of errors.
var ownRules = map[string]wire.Rule{
	"ManagementError.details": {Instead: wire.Schema{"type": "array", "items": wire.Schema{"anyOf": []any{
		wire.Schema{"$ref": "#/components/schemas/ErrorInfo"}, wire.Schema{"$ref": "#/components/schemas/BadRequest"}}}}},
	"ManagementError.code": wire.Between(1, 16),
	"ErrorInfo.@type":      wire.OneOf("ErrorInfo"),
	"BadRequest.@type":     wire.OneOf("BadRequest"),
}

// typeTexts describes the types of this package in the API reference.
var typeTexts = map[string]string{
	"BadRequest":         "All invalid fields of a request.",
	"ErrorInfo":          "Machine-readable reason of an error.",
	"InferenceErrorBody": "Message, type, field (param) and code of an error.",
	"InferenceError": "Error of inference, audio and other operations of the OpenAI API. All fields are always " +
		"present.",
	"ManagementError": "Error of all other operations.",
}

// fieldTexts describes the fields of this package's types in the API reference.
var fieldTexts = map[string]string{
	"ManagementError.code":       "Canonical error code (google.rpc.Code), as a number.",
	"ErrorInfo.reason":           "Machine-readable reason, in UPPER_SNAKE_CASE. Reasons do not change between releases.",
	"ErrorInfo.domain":           "Always anneal.",
	"ErrorInfo.metadata":         "Further values about the error, such as the request ID.",
	"BadRequest.fieldViolations": "Violated rules, at least one for each invalid field.",
	"InferenceErrorBody.type":    "Kind of the error, such as invalid_request_error.",
}

var ownDocumentation = Documentation{ownRules, fieldTexts, typeTexts}
