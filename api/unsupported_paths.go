package api

import "strings"

// unsupportedPaths lists paths of the OpenAI API that the server does not have, with the reason and
// what a client can do instead. An entry covers all paths below its path too. Clients of OpenAI
// request these paths, and so get an error that says what is missing.
var unsupportedPaths = []struct{ path, reason string }{
	{"/v1/responses", "responses are not stored: send the earlier items in input of POST /v1/responses"},
	{"/v1/conversations", "conversations are not stored: send the earlier items in input of POST /v1/responses"},
	{"/v1/chat/completions", "chat completions are not stored: keep them in the client"},
	{"/v1/uploads", "uploads in parts are not supported: upload the whole file with POST /v1/files"},
	{"/v1/fine_tuning/checkpoints", "permissions of checkpoints are not supported: promote the checkpoint to a model, " +
		"and set the field public of the model"},
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

// unsupportedReason returns why the server does not have a path of the OpenAI API; "" for other
// paths.
func unsupportedReason(path string) string {
	for _, one := range unsupportedPaths {
		if path == one.path || strings.HasPrefix(path, one.path+"/") {
			return one.reason
		}
	}
	return ""
}
