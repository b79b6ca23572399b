package api

import (
	"net/http"
	"strings"

	"anneal/domain"
)

// unofferedInference are the operations of the interface that this version does
// not have yet: each is refused by its name, with what to do instead, to whoever
// would be allowed to use it.
var unofferedInference = []struct{ method, path, what, instead string }{
	{"POST", "/v1/audio/transcriptions", "transcription of audio", "no engine here takes audio"},
	{"POST", "/v1/audio/translations", "translation of audio", "no engine here takes audio"},
}

// unofferedOperations are routed, and not described.
func unofferedOperations() []operation {
	var all []operation
	for _, one := range unofferedInference {
		all = append(all, operation{id: one.method + " " + one.path, method: one.method, path: one.path, gate: toModels, unlisted: true,
			handle: func(*call) (any, error) { return nil, notOffered(one.what, one.instead) }})
	}
	return all
}

func notOffered(what, instead string) *domain.Fault {
	f := domain.Faultf(domain.Unimplemented, "%s is not offered yet: %s", what, instead)
	f.Reason = "NOT_OFFERED"
	return f
}

// isInference tells whether the path is one whose errors have the inference
// shape.
func isInference(r *http.Request) bool {
	return strings.HasPrefix(r.URL.Path, "/inference/") || isAudio(r)
}

// isAudio tells whether the path is one that takes a key without a scheme word.
func isAudio(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/audio/") }
