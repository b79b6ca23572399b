package api

import "strings"

// unsupportedPaths are the paths of the OpenAI API without a counterpart, with the reason and
// what a client can do. A path stands for itself and for all paths below it. Clients of OpenAI's
// interface request them, so that an error names what is missing.
var unsupportedPaths = []struct{ path, reason string }{
	{"/v1/responses", "responses are not stored: send the earlier items in input of POST /v1/responses"},
	{"/v1/conversations", "conversations are not stored: send the earlier items in input of POST /v1/responses"},
	{"/v1/chat/completions", "chat completions are not stored: keep them in the client"},
	{"/v1/uploads", "uploads in parts are not supported: upload the whole file with POST /v1/files"},
	{"/v1/fine_tuning/checkpoints", "permissions of checkpoints are not supported: promote a checkpoint to a model"},
	{"/v1/fine_tuning/alpha/graders", "graders are not supported: create an evaluator"},
	{"/v1/evals", "evals are not supported: create an evaluator, and score models with `anneal eval`"},
	{"/v1/images", "the generation of images is not supported"},
	{"/v1/videos", "the generation of videos is not supported"},
	{"/v1/audio/speech", "the generation of speech is not supported"},
	{"/v1/realtime", "realtime sessions are not supported: use POST /v1/responses with stream"},
	{"/v1/moderations", "moderations are not supported: classify texts with POST /v1/chat/completions"},
	{"/v1/assistants", "assistants are not supported: use POST /v1/responses"},
	{"/v1/threads", "threads are not supported: use POST /v1/responses"},
	{"/v1/vector_stores", "vector stores are not supported: compute vectors with POST /v1/embeddings"},
	{"/v1/containers", "containers are not supported"},
	{"/v1/organization", "organizations are not supported: resources belong to an account, /v1/accounts/ACCOUNT"},
}

// unsupportedReason returns why a path of the OpenAI API does not exist, "" for other paths.
func unsupportedReason(path string) string {
	for _, one := range unsupportedPaths {
		if path == one.path || strings.HasPrefix(path, one.path+"/") {
			return one.reason
		}
	}
	return ""
}
