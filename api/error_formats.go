package api

import (
	"iter"
	"net/http"
	"strings"

	"anneal/api/request"
)

// errorFormats decide whether an error response to a request that reaches no operation is an
// InferenceError. A request that reaches an operation gets the format of the operation: see
// request.Operation.HasInferenceErrors.
//
// The rule is derived from the operations: a path has the format of the operations with which it
// shares its longest prefix of segments. If those operations have both formats, an error below /v1
// is an InferenceError, because clients of the OpenAI API request such paths; any other error
// is a ManagementError. The error of a path that meantPath knows is an InferenceError.
//
// Each prefix of an operation's path maps to the formats of the operations below the prefix.
type errorFormats map[string]formatsBelow

// formatsBelow are the formats of errors that operations below a prefix have.
type formatsBelow struct {
	inference, management bool
	exact                 bool // an operation has this path
}

// formatsOf returns the formats of the operations of a table.
func formatsOf(table []request.Operation) errorFormats {
	formats := errorFormats{}
	for i := range table {
		for prefix := range prefixes(table[i].Path) {
			below := formats[prefix]
			below.inference = below.inference || table[i].HasInferenceErrors()
			below.management = below.management || !table[i].HasInferenceErrors()
			below.exact = below.exact || prefix == table[i].Path
			formats[prefix] = below
		}
	}
	return formats
}

// prefixes yields the path and its prefixes that end before a slash, from the longest to "".
func prefixes(path string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for yield(path) && path != "" {
			path = path[:max(strings.LastIndex(path, "/"), 0)]
		}
	}
}

// isInference reports whether an error response to the request is an InferenceError.
func (f errorFormats) isInference(r *http.Request) bool {
	if request.IsDirect(r) || f.meantPath(r.URL.Path) != "" {
		return true
	}
	for prefix := range prefixes(strings.TrimRight(r.URL.Path, "/")) {
		if below, found := f[prefix]; found {
			return below.inference && (!below.management || prefix == "/v1")
		}
	}
	return false
}

// meantPath returns the path of the OpenAI API that a client with a wrong base URL has meant: its
// base URL lacks /v1, or has it twice. It returns "" for other paths.
func (f errorFormats) meantPath(path string) string {
	meant := "/v1/" + strings.Trim(strings.TrimPrefix(path, "/v1/v1"), "/")
	if below := f[meant]; meant == path || !below.exact || !below.inference || below.management {
		return ""
	}
	return meant
}
