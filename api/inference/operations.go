package inference

import (
	"reflect"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
)

// prefixes has the path prefixes below which the operations of this package are served. Clients of
// OpenAI expect them below /v1.
var prefixes = []struct{ path, id, summary, about string }{
	{"/inference/v1", "", "", ""},
	{"/v1", "Compatible", " (OpenAI-compatible path)", "The same operation as at the path below /inference/v1. "},
}

// Operations returns the operations of this package, once for each of the prefixes.
func (s *Service) Operations() (all []request.Operation) {
	for _, at := range prefixes {
		for _, op := range s.operations() {
			verb, noun := splitID(op.ID)
			op.ID, op.Path, op.Tag, op.Gate = verb+at.id+noun, at.path+op.Path, "inference", request.ToModels
			if at.id != "" {
				op.ID = strings.Replace(op.ID, "Inference", "", 1)
			}
			op.Summary, op.Description = op.Summary+at.summary, at.about+op.Description
			all = append(all, op)
		}
	}
	return all
}

// splitID splits the ID of an operation, such as createCompletion, into verb and noun: create and
// Completion.
func splitID(id string) (verb, noun string) {
	at := strings.IndexFunc(id, func(r rune) bool { return r >= 'A' && r <= 'Z' })
	return id[:at], id[at:]
}

// generating returns an operation that generates text. B is the type of its request body, R of its
// response, and E of an event in its stream.
func generating[B, R, E any](id, path, summary, about string, handle request.Handler) request.Operation {
	return request.Operation{ID: id, Method: "POST", Path: path, Summary: summary, Description: about,
		Body: reflect.TypeFor[B](), Response: reflect.TypeFor[R](), Streamed: reflect.TypeFor[E](),
		ResponseHeaders: performanceHeaders, Handle: handle}
}

// operations returns the operations of this package; their paths lack the prefix.
func (s *Service) operations() []request.Operation {
	const streaming = "With stream, the response consists of server-sent events; the data of the last one is [DONE]."
	return []request.Operation{
		generating[CompletionBody, Completion, Completion]("createCompletion", "/completions", "Create a completion",
			streaming, s.handle(createCompletion)),
		generating[ChatBody, ChatCompletion, ChatChunk]("createChatCompletion", "/chat/completions",
			"Create a chat completion", "The model's chat template renders the messages as a prompt. "+streaming,
			s.handle(createChatCompletion)),
		generating[ResponseBody, Response, ResponseEvent]("createResponse", "/responses", "Create a response",
			"The stateless part of OpenAI's Responses API. Responses are not stored: store must be false or absent, and "+
				"fields that refer to stored responses are rejected. With stream, the response consists "+
				"of server-sent events; the last one is response.completed, response.incomplete or response.failed.",
			s.handle(createResponse)),
		{ID: "createEmbedding", Method: "POST", Path: "/embeddings", Summary: "Create embeddings",
			Description: "Computes one vector for each input. The model's file modules.json states whether the vector is " +
				"the mean of all hidden states or the last hidden state; without that file, it is the last hidden state scaled " +
				"to length 1. The model's " +
				"tokenizer adds its special tokens to texts, but not to lists of token IDs. With dimensions, each vector is " +
				"truncated to that number of elements and scaled to length 1.",
			Body: reflect.TypeFor[EmbeddingBody](), Response: reflect.TypeFor[EmbeddingList](),
			ResponseHeaders: embeddingHeaders, Handle: s.handle(createEmbedding)},
		{ID: "listInferenceModels", Method: "GET", Path: "/models", Summary: "List the models that inference requests " +
			"can name",
			Description: "A model of the caller's account has two entries: one with its resource name, and one with its ID. " +
				"Requests accept both.",
			Response: reflect.TypeFor[inferenceModelList](), Handle: s.handle(listModels)},
		{ID: "getInferenceModel", Method: "GET", Path: "/models/{model}", Slashes: true,
			Summary:     "Get a model that inference requests can name",
			Description: "The name of the model may have any form that an inference request accepts.",
			Response:    reflect.TypeFor[inferenceModel](), Handle: s.handle(getModel)},
	}
}

// performanceHeaders lists the response headers with performance metrics. A stream has only
// anneal-warning and anneal-route, because its headers are sent before the values of the other
// headers are known.
var performanceHeaders = []request.Parameter{
	{Name: "anneal-warning", Kind: wire.Text,
		Description: "Names a parameter that the server ignored, because it is unknown or has no effect. The response " +
			"has one such header for each of the first 32 unknown parameters, and one with the number of further parameters."},
	{Name: "anneal-prompt-tokens", Kind: wire.Int, Description: "Number of prompt tokens."},
	{Name: "anneal-cached-prompt-tokens", Kind: wire.Int,
		Description: "Number of prompt tokens found in the prefix cache."},
	{Name: "anneal-server-time-to-first-token", Kind: wire.Text, Description: "Time to first token, in seconds."},
	{Name: "anneal-server-processing-time", Kind: wire.Text, Description: "Time to last token, in seconds."},
	{Name: "anneal-deployment", Kind: wire.Text, Description: "Name of the deployment that processed the request."},
	{Name: "anneal-backend-host", Kind: wire.Text, Description: "Node that processed the request: its name " +
		"for the operator, and an opaque label for others."},
	{Name: "anneal-num-concurrent-requests", Kind: wire.Int,
		Description: "Number of requests of this server in progress on the replica, including this request."},
	{Name: "anneal-route", Kind: wire.Text,
		Description: "The replica that processed the request, and why it was chosen. reason is tokens, if the replica " +
			"had the fewest prompt tokens to process before the answer, or session, if it answers the other requests of " +
			"the session. candidates is the number of replicas that could be chosen, and requests the number of requests " +
			"in progress on the chosen one. pending-tokens, cached-tokens and uncached-tokens are predictions: prompt " +
			"tokens of earlier requests that the replica must process first, and tokens of this prompt that it has and " +
			"has not cached. Without requests and pending-tokens if the deployment belongs to another account."},
	{Name: "anneal-tokenizer-duration", Kind: wire.Text, Description: "Time to tokenize the prompt, in seconds."},
	{Name: "anneal-prefill-queue-duration", Kind: wire.Text,
		Description: "Time in the queue before prefill, in seconds."},
	{Name: "anneal-tokenizer-queue-duration", Kind: wire.Text,
		Description: "Time in the queue before tokenization, in seconds; 0.000000 for an engine without this queue."},
	{Name: "anneal-generation-queue-duration", Kind: wire.Text,
		Description: "Time between prefill and the first decoding step, in seconds; 0.000000 for an engine with " +
			"continuous batching, because its requests do not wait between the two."},
	{Name: "anneal-prefill-duration", Kind: wire.Text, Description: "Prefill time, in seconds."},
	{Name: "anneal-speculation-prompt-tokens", Kind: wire.Int,
		Description: "Number of tokens in the request's field prediction."},
	{Name: "anneal-speculation-prompt-matched-tokens", Kind: wire.Int,
		Description: "Number of tokens of the prediction that the completion contains."},
	{Name: "anneal-speculation-generated-tokens", Kind: wire.Int,
		Description: "Number of tokens that speculative decoding drafted."},
	{Name: "anneal-speculation-acceptance", Kind: wire.Text,
		Description: "Acceptance rates of draft tokens from 0 to 1, by position in the draft, separated by commas."},
}
