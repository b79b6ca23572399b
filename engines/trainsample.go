package engines

import "context"

// A TrainSampler generates samples from a pool's base model, with or without an adapter. It is safe
// for concurrent use by any number of calls: those that do not fit into a batch wait.
//
// A sample depends only on its request and its weights: it is bit-identical beside any other calls.
type TrainSampler interface {
	// Sample returns InvalidArgument if the request is not valid for the model. It does not read
	// Weights of the request.
	Sample(ctx context.Context, request TrainSampleRequest) (TrainSamples, error)
	// Close frees the memory of the adapter after the calls in progress have returned. Later calls
	// return FailedPrecondition.
	Close() error
}

// A TrainSampleRequest selects samples of the continuation of one prompt. The prompt and a sample
// have at most TrainPool.MaxTokens tokens together.
type TrainSampleRequest struct {
	Weights string  // identifies the adapter that the caller of the pool loads; "" for the base model
	Prompt  []int32 // at least one token
	N       int     // number of samples, 1 to MaxTrainSamples
	// MaxTokens is the maximum number of tokens of a sample; 0 stands for the maximum of the pool.
	// A sample has fewer if the prompt and the sample would exceed the maximum of the pool.
	MaxTokens   int
	Temperature float64 // divides the logits; 0 selects the most likely token each time
	TopK        int     // number of most likely tokens to draw from; 0 or below for all
	TopP        float64 // minimum total probability of the most likely tokens to draw from; 0 or 1 for all
	Seed        uint64  // sample i is drawn with the seed (Seed, i)

	// A sample stops after one of the tokens in StopTokens, after a token that completes one of the
	// texts in StopTexts, and after the model's tokens for the end of a sequence. It includes that
	// token.

	StopTokens []int32
	StopTexts  []string

	PromptLogprobs     bool // return TrainSamples.PromptLogprobs
	TopKPromptLogprobs int  // number of most likely tokens to return for each token of the prompt

	// Share is the account for which samples are computed. Prompts are cached for each account
	// separately.
	Share TrainShare `json:"-"`
}

// Limits of TrainSampleRequest.
const (
	MaxTrainSamples      = 4096
	MaxTrainTopLogprobs  = 100
	MaxTrainStops        = 64   // of StopTokens, and of StopTexts
	MaxTrainStopTextSize = 1024 // in bytes
)

// TrainSamples are the samples of a request.
type TrainSamples struct {
	Sequences []TrainSequence // one for each sample, in order

	// The following are natural logarithms at temperature 1: the values, rounded to float32, that
	// TrainRun.Forward returns for the same tokens and adapter. Values that do not exist are NaN:
	// those of the first token of the prompt, which no token precedes.

	PromptLogprobs []float32 // log-probability of each token of the prompt; nil unless requested
	// TopKTokens and TopKLogprobs are the k = TopKPromptLogprobs most likely tokens in place of
	// each token of the prompt, most likely first, and their log-probabilities: those of the first
	// token come first, and have the token 0. They are nil unless requested.
	TopKTokens   []int32
	TopKLogprobs []float32

	CachedTokens int // number of tokens of the prompt that were not computed again for the first sample
}

// A TrainSequence is one sample.
type TrainSequence struct {
	Tokens []int32
	// Logprobs are natural logarithms of the probability with which each token was drawn, given the
	// tokens before it: after temperature, TopK and TopP. With temperature 1 and all tokens to draw
	// from, they are the values that TrainRun.Forward returns; with temperature 0 they are 0.
	Logprobs []float32
	Stopped  bool // whether the last token stopped the sample; otherwise it has the maximum number of tokens
}

// A TrainShare is the account for which a pool computes, and its weight. While passes and samples
// of several accounts wait, tokens are computed in proportion to the weights. Shares do not change
// results.
type TrainShare struct {
	Account string
	Weight  int // 1 to MaxTrainWeight; 0 stands for 1
}

// MaxTrainWeight is the maximum of TrainShare.Weight.
const MaxTrainWeight = 1000
