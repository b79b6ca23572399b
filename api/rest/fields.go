package rest

import (
	"anneal/api/openapi"
	"anneal/domain"
	"anneal/projections/query"
)

// fieldsOf returns the fields of a wire type that filters and orderBy may name. Filters accept only
// the values in fieldRules for fields that are enumerations.
func fieldsOf[R any]() *query.Fields[R] {
	return query.FieldsOf[R]().WithValues(valuesOf)
}

// storedFieldsOf is like fieldsOf. names are the fields that the renderer of the type copies
// unchanged from the row, so that lists can read them without rendering.
func storedFieldsOf[S domain.State, R any](names ...string) *query.Fields[R] {
	return query.StoredFieldsOf[S, R](names...).WithValues(valuesOf)
}

var valuesOf = openapi.Values(fieldRules)
