package api

import (
	"iter"
	"net/http"
	"strings"

	"anneal/api/request"
)

// errorFormats decide whether an error response is an InferenceError or a ManagementError, for
// requests that match no operation. (Other requests get the format of their operation: see
// request.Operation.HasInferenceErrors.)
//
// A path gets the format of the operations with which it shares its longest prefix of segments. If
// those operations have both formats, an error below /v1 is an InferenceError, because clients of
// the OpenAI API request such paths; any other error is a ManagementError. The error of a path that
// intendedPath corrects is an InferenceError.
//
// Each prefix of an operation's path maps to the formats of the operations below the prefix.
type errorFormats map[string]formatsBelow

// formatsBelow states which formats the errors of the operations below a prefix have.
type formatsBelow struct {
	inference, management bool
	exact                 bool // the prefix is the whole path of an operation
}

// formatsOf returns the errorFormats of a table of operations.
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

// isInference reports whether the error response to the request is an InferenceError.
func (f errorFormats) isInference(r *http.Request) bool {
	if request.IsDirect(r) || f.intendedPath(r.URL.Path) != "" {
		return true
	}
	for prefix := range prefixes(strings.TrimRight(r.URL.Path, "/")) {
		if below, found := f[prefix]; found {
			return below.inference && (!below.management || prefix == "/v1")
		}
	}
	return false
}

// intendedPath returns the path of the OpenAI API that a client with a wrong base URL intended: its
// base URL lacks /v1, or has /v1 twice. It returns "" if the corrected path is not the path of an
// inference operation.
func (f errorFormats) intendedPath(path string) string {
	meant := "/v1/" + strings.Trim(strings.TrimPrefix(path, "/v1/v1"), "/")
	if below := f[meant]; meant == path || !below.exact || !below.inference || below.management {
		return ""
	}
	return meant
}
