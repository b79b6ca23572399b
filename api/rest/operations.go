package rest

import (
	"net/http"
	"slices"
	"strings"

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
	for i := range all {
		if showsState(&all[i]) {
			all[i].Query = append(slices.Clip(all[i].Query), request.AsOfParameter)
		}
	}
	return all
}

// presentOnly are the gets and lists that do not show the state of resources, by the ID of the operation
// or its end: they have no parameter asOf.
var presentOnly = []string{
	"getDigest",                      // 'anneal log verify' compares the state at a position with the log
	"listBackups",                    // of targets outside of the log
	"listRebuilds",                   // of the state itself
	"Events",                         // each has its position
	"getDelivery", "listDeadLetters", // a file beside the log
	"Usage",                // has times of its own
	"Endpoint", "Rollouts", // files, which are not kept after a change
}

// showsState reports whether an operation gets or lists resources from the state of the world.
func showsState(op *request.Operation) bool {
	return op.Method == http.MethodGet && op.Response != nil &&
		(strings.HasPrefix(op.ID, "get") || strings.HasPrefix(op.ID, "list")) &&
		!slices.ContainsFunc(presentOnly, func(end string) bool { return strings.HasSuffix(op.ID, end) })
}
