package rest

import (
	"anneal/api/request"
)

// A group returns some operations of a service.
type group func(s *Service) []request.Operation

// groups contain the operations of all kinds. Each kind registers a group in the file of the kind.
var groups []group

func register(more ...group) bool {
	groups = append(groups, more...)
	return true
}

// Operations returns the operations of all kinds.
func (s *Service) Operations() []request.Operation {
	var all []request.Operation
	for _, operations := range groups {
		all = append(all, operations(s)...)
	}
	return all
}
