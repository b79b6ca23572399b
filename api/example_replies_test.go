package api

import (
	"context"
	"math"
	"regexp"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// replies are the completions of the story's model. A prompt gets the first reply whose key it
// contains.
var replies = []struct{ key, text string }{
	{"Write the subject line", "Your replacement tent poles are on their way"},
	{"Classify the ticket", `{"category":"returns","urgency":"normal","order_id":"LO-58213"}`},
	{"Where is order", `get_order {"order_id":"LO-58213"}`},
	{"delivered on 26 February",
		"Your order LO-58213 was delivered on 26 February. You can return the tent until 28 March, " +
			"since our return period is 30 days."},
	{"return a tent", "Yes. You can return the tent within 30 days of delivery if it is clean and complete. Shall I " +
		"send you a " +
		"return label?"},
}

var exampleToken = regexp.MustCompile(`\s?[A-Za-z]{1,7}|\s?\d{1,3}|\s|[^\sA-Za-z0-9]`)

// tokensOf splits a text into tokens like those of a language model.
func tokensOf(text string) []string { return exampleToken.FindAllString(text, -1) }

// completeReply completes a prompt with one of the replies, one token per chunk.
func completeReply(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	prompt := req.Prompt
	if req.Chat != nil {
		for _, m := range req.Chat.Messages {
			prompt += m.Content + "\n"
		}
	}
	usage := engines.Usage{PromptTokens: len(tokensOf(prompt)) + 1, ContextLength: 8192}
	usage.CachedTokens = usage.PromptTokens / 32 * 16
	reply := "Thank you for your message. A colleague will answer you today."
	for _, one := range replies {
		if strings.Contains(prompt, one.key) {
			reply = one.text
			break
		}
	}
	if name, arguments, ok := strings.Cut(reply, " {"); ok {
		usage.CompletionTokens = len(tokensOf(reply)) + 4
		err := emit(engines.Chunk{ToolCalls: []engines.ToolCall{{ID: "call_7d2f91c4", Name: name,
			Arguments: "{" + arguments}}})
		if err != nil {
			return usage, err
		}
		return usage, emit(engines.Chunk{Finish: engines.FinishToolCalls})
	}
	finish, offset := engines.FinishStop, 0
	for i, token := range tokensOf(reply) {
		if req.MaxTokens > 0 && i == req.MaxTokens {
			finish = engines.FinishLength
			break
		}
		usage.CompletionTokens++
		chunk := engines.Chunk{Text: token, Tokens: []int{idOf(token)}}
		if req.Logprobs {
			chunk.Logprobs = []engines.Logprob{likely(token, offset, req.TopLogprobs)}
		}
		offset += len(token)
		if err := emit(chunk); err != nil {
			return usage, err
		}
	}
	return usage, emit(engines.Chunk{Finish: finish})
}

// idOf returns the ID of a token.
func idOf(token string) (id int) {
	for _, c := range []byte(token) {
		id = (id*31 + int(c)) % 128_000
	}
	return id
}

// likely returns the log-probability of a token in the story, with up to two alternative tokens.
func likely(token string, offset, alternatives int) engines.Logprob {
	value := -math.Round(float64(1+idOf(token)%97)*1.37) / 1000
	one := engines.Logprob{Token: idOf(token), Text: token, Bytes: []byte(token), Offset: offset, Logprob: value,
		Sampling: value}
	for i, text := range []string{token, " the"} {
		if i < alternatives {
			one.Top = append(one.Top, engines.Logprob{Token: idOf(text), Text: text, Bytes: []byte(text),
				Logprob: value - 3.25*float64(i)})
		}
	}
	return one
}

// embedText returns the embedding of a text: the normalized sum of one vector for each word.
func embedText(_ context.Context, req engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error) {
	const size = 768
	vector := make([]float32, size)
	words := strings.Fields(strings.ToLower(req.Input))
	for _, word := range words {
		for i := range vector {
			vector[i] += float32(math.Sin(float64(idOf(word)+1) * float64(i+1)))
		}
	}
	factor := engines.UnitFactor(vector)
	for i := range vector {
		vector[i] = float32(math.Round(float64(vector[i])*factor*1e6) / 1e6)
	}
	short := engines.Shorten(vector, req.Dimensions)
	return engines.NewEmbedding(short), engines.Usage{PromptTokens: len(tokensOf(req.Input)) + 2}, nil
}

// transcribeCall transcribes the story's recording of a call.
func transcribeCall(_ context.Context, _ domain.Replica, req engines.TranscriptionRequest,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	at := 0.32
	for i, text := range []string{"Lumen Outdoor, this is Priya, how can I help?",
		"Hi, my tent arrived yesterday and one of the poles is broken."} {
		segment := engines.Segment{Start: at, Text: text, AvgLogprob: -0.187, CompressionRatio: 1.21, NoSpeechProb: 0.008,
			Speaker: []string{"SPEAKER_00", "SPEAKER_01"}[i]}
		if !req.Options.Diarize {
			segment.Speaker = ""
		}
		for _, word := range strings.Fields(text) {
			end := math.Round((at+0.06*float64(1+len(word)))*100) / 100
			segment.Words = append(segment.Words, engines.Word{Text: word, Start: at, End: end, Probability: 0.97,
				Language: "en", Speaker: segment.Speaker})
			segment.Tokens = append(segment.Tokens, idOf(word))
			at = math.Round((end+0.04)*100) / 100
		}
		segment.End = at
		if err := emit(engines.TranscriptEvent{Seconds: at, Segment: &segment}); err != nil {
			return engines.Transcript{}, err
		}
		at = math.Round((at+0.4)*100) / 100
	}
	return engines.Transcript{Language: "en", Duration: at}, nil
}

// A resolutionScorer is an engines.Scorer that gives the score 1 to replies that contain the ground
// truth of the row.
type resolutionScorer struct{}

type resolutionEvaluation struct{}

func (resolutionScorer) Open(context.Context, engines.EvaluatorCode) (engines.Evaluation, error) {
	return resolutionEvaluation{}, nil
}

func (resolutionEvaluation) Score(_ context.Context, rows []map[string]any) (scores []engines.Score, err error) {
	for _, row := range rows {
		messages := row["messages"].([]any)
		reply, _ := messages[len(messages)-1].(map[string]any)["content"].(string)
		truth, _ := row["ground_truth"].(string)
		if strings.Contains(reply, truth) {
			scores = append(scores, engines.Score{Value: 1, Valid: true, Reason: "names the policy: " + truth,
				Metrics: map[string]float64{"names_policy": 1, "brevity": 1}, Stdout: "checked 1 reply\n"})
		} else {
			scores = append(scores, engines.Score{Value: 0.3, Valid: true, Reason: "does not name the policy: " + truth,
				Metrics: map[string]float64{"names_policy": 0, "brevity": 1}, Stdout: "checked 1 reply\n"})
		}
	}
	return scores, nil
}

func (resolutionEvaluation) Close() error { return nil }
