package rest

import (
	"anneal/api/openapi"
	"anneal/domain"
	"anneal/projections/query"
)

// fieldsOf returns the fields of a wire type that filter and orderBy may name. For an enumeration,
// filters accept only the values in fieldRules.
func fieldsOf[R any]() *query.Fields[R] {
	return query.FieldsOf[R]().WithValues(valuesOf)
}

// storedFieldsOf is like fieldsOf. names lists the fields that the renderer of the type copies
// unchanged from the row, so that lists can filter and order by them without rendering all rows.
func storedFieldsOf[S domain.State, R any](names ...string) *query.Fields[R] {
	return query.StoredFieldsOf[S, R](names...).WithValues(valuesOf)
}

var valuesOf = openapi.Values(fieldRules)
