// Command openaigo is a test of openai-go against a server: it sends requests, and prints the
// responses as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/openai/openai-go/v3/responses"
)

type reply struct {
	Text   string `json:"text"`
	Finish string `json:"finish"`
	Chunks int    `json:"chunks,omitempty"`
	Tokens int64  `json:"tokens"` // number of tokens of the prompt and the completion
}

type apiError struct {
	Status  int    `json:"status"`
	Param   string `json:"param"`
	Message string `json:"message"`
}

func main() {
	report, err := ask(context.Background())
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(ctx context.Context) (map[string]any, error) {
	client := openai.NewClient(option.WithBaseURL(os.Getenv("BASE_URL")), option.WithAPIKey(os.Getenv("API_KEY")),
		option.WithMaxRetries(0))
	report := map[string]any{}
	for name, what := range map[string]func(context.Context, openai.Client) (any, error){
		"completion": complete, "stream": stream, "chat": chat, "chatStream": chatStream, "models": models,
		"model": model, "embedding": embedding, "response": response, "responseStream": responseStream, "refusal": refused,
	} {
		answer, err := what(ctx, client)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		report[name] = answer
	}
	return report, nil
}

func completion() openai.CompletionNewParams {
	return openai.CompletionNewParams{Model: openai.CompletionNewParamsModel(os.Getenv("MODEL")),
		MaxTokens: openai.Int(24), Temperature: openai.Float(0),
		Prompt: openai.CompletionNewParamsPromptUnion{OfString: openai.String(os.Getenv("PROMPT"))}}
}

func complete(ctx context.Context, client openai.Client) (any, error) {
	answer, err := client.Completions.New(ctx, completion())
	if err != nil {
		return nil, err
	}
	return reply{Text: answer.Choices[0].Text, Finish: string(answer.Choices[0].FinishReason),
		Tokens: answer.Usage.TotalTokens}, nil
}

func stream(ctx context.Context, client openai.Client) (any, error) {
	var all reply
	pieces := client.Completions.NewStreaming(ctx, completion())
	for pieces.Next() {
		piece := pieces.Current()
		all.Chunks++
		all.Tokens = piece.Usage.TotalTokens
		for _, choice := range piece.Choices {
			all.Text += choice.Text
			all.Finish = string(choice.FinishReason)
		}
	}
	return all, pieces.Err()
}

func conversation() openai.ChatCompletionNewParams {
	return openai.ChatCompletionNewParams{Model: os.Getenv("MODEL"), MaxTokens: openai.Int(24),
		Temperature: openai.Float(0),
		Messages:    []openai.ChatCompletionMessageParamUnion{openai.UserMessage(os.Getenv("PROMPT"))}}
}

func chat(ctx context.Context, client openai.Client) (any, error) {
	answer, err := client.Chat.Completions.New(ctx, conversation())
	if err != nil {
		return nil, err
	}
	return reply{Text: answer.Choices[0].Message.Content, Finish: answer.Choices[0].FinishReason,
		Tokens: answer.Usage.TotalTokens}, nil
}

func chatStream(ctx context.Context, client openai.Client) (any, error) {
	pieces, chunks := client.Chat.Completions.NewStreaming(ctx, conversation()), 0
	var all openai.ChatCompletionAccumulator
	for pieces.Next() {
		chunks++
		if !all.AddChunk(pieces.Current()) {
			return nil, errors.New("a chunk does not belong to the same completion as the chunks before it")
		}
	}
	if err := pieces.Err(); err != nil {
		return nil, err
	}
	return reply{Text: all.Choices[0].Message.Content, Finish: all.Choices[0].FinishReason, Chunks: chunks,
		Tokens: all.Usage.TotalTokens}, nil
}

func models(ctx context.Context, client openai.Client) (any, error) {
	var names []string
	pages := client.Models.ListAutoPaging(ctx)
	for pages.Next() {
		names = append(names, pages.Current().ID)
	}
	return names, pages.Err()
}

func model(ctx context.Context, client openai.Client) (any, error) {
	one, err := client.Models.Get(ctx, os.Getenv("MODEL"))
	if err != nil {
		return nil, err
	}
	return one.ID, nil
}

func embedding(ctx context.Context, client openai.Client) (any, error) {
	list, err := client.Embeddings.New(ctx, openai.EmbeddingNewParams{Model: os.Getenv("MODEL"),
		Input: openai.EmbeddingNewParamsInputUnion{OfArrayOfStrings: []string{os.Getenv("PROMPT"), "chairs"}}})
	if err != nil {
		return nil, err
	}
	var all [][]float64
	for _, one := range list.Data {
		all = append(all, one.Embedding)
	}
	return map[string]any{"vectors": all, "tokens": list.Usage.TotalTokens}, nil
}

func input() responses.ResponseNewParams {
	return responses.ResponseNewParams{Model: os.Getenv("MODEL"), MaxOutputTokens: openai.Int(24),
		Temperature: openai.Float(0),
		Input:       responses.ResponseNewParamsInputUnion{OfString: openai.String(os.Getenv("PROMPT"))}}
}

func response(ctx context.Context, client openai.Client) (any, error) {
	answer, err := client.Responses.New(ctx, input())
	if err != nil {
		return nil, err
	}
	return reply{Text: answer.OutputText(), Finish: string(answer.Status), Tokens: answer.Usage.TotalTokens}, nil
}

func responseStream(ctx context.Context, client openai.Client) (any, error) {
	var all reply
	events := client.Responses.NewStreaming(ctx, input())
	for events.Next() {
		switch event := events.Current().AsAny().(type) {
		case responses.ResponseTextDeltaEvent:
			all.Chunks++
			all.Text += event.Delta
		case responses.ResponseCompletedEvent:
			all.Finish, all.Tokens = string(event.Response.Status), event.Response.Usage.TotalTokens
		case responses.ResponseIncompleteEvent:
			all.Finish, all.Tokens = string(event.Response.Status), event.Response.Usage.TotalTokens
		}
	}
	return all, events.Err()
}

func refused(ctx context.Context, client openai.Client) (any, error) {
	request := completion()
	request.Temperature = openai.Float(3)
	_, err := client.Completions.New(ctx, request)
	var apiErr *openai.Error
	if !errors.As(err, &apiErr) {
		return nil, fmt.Errorf("temperature 3: unexpected response %v", err)
	}
	return apiError{apiErr.StatusCode, apiErr.Param, apiErr.Message}, nil
}
