package rest

import (
	"net/http"
	"slices"
	"strings"

	"anneal/api/request"
)

// A group is a function that returns the operations of one kind.
type group func(s *Service) []request.Operation

// groups has the group of each kind, which the file of the kind registers.
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

// presentOnly lists the gets and lists that do not read the state of resources in the world, and so
// have no parameter asOf. An entry is an operation ID, or a suffix of operation IDs.
var presentOnly = []string{
	"getDigest",                      // 'anneal log verify' computes the digest of an earlier position
	"listBackups",                    // backups are not part of the log
	"listRebuilds",                   // rebuilds are not part of the log
	"Events",                         // lists of events, which contain the past states already
	"getDelivery", "listDeadLetters", // read from a file, not from the log
	"Usage",                // selects a period with the parameters startTime and endTime
	"Endpoint", "Rollouts", // read files, which exist only for the present state
}

// showsState reports whether an operation gets or lists resources of the world.
func showsState(op *request.Operation) bool {
	return op.Method == http.MethodGet && op.Response != nil &&
		(strings.HasPrefix(op.ID, "get") || strings.HasPrefix(op.ID, "list")) &&
		!slices.ContainsFunc(presentOnly, func(end string) bool { return strings.HasSuffix(op.ID, end) })
}
