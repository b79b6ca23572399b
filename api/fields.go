package api

import (
	"reflect"

	"anneal/domain"
	"anneal/projections/query"
)

// fieldsOf is what filters and orders may name of a wire type. What the
// document says of an enumeration's values holds for filters too.
func fieldsOf[R any]() *query.Fields[R] {
	return query.FieldsOf[R]().WithValues(valuesOf)
}

// storedFieldsOf is fieldsOf where render takes those named from the row unchanged.
func storedFieldsOf[S domain.State, R any](names ...string) *query.Fields[R] {
	return query.StoredFieldsOf[S, R](names...).WithValues(valuesOf)
}

func valuesOf(in reflect.Type, field string) []string {
	return ruleOf(componentName(in), field).Enum
}
