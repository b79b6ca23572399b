// Command finetune is a test of openai-go against a server: it trains a model on pairs of prompts
// and responses, sends a request to it, and prints the results as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
)

func main() {
	report, err := ask(context.Background(), os.Args[1])
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(report)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func ask(ctx context.Context, rows string) (map[string]any, error) {
	client := openai.NewClient(option.WithBaseURL(os.Getenv("BASE_URL")), option.WithAPIKey(os.Getenv("API_KEY")),
		option.WithMaxRetries(0))
	content, err := os.Open(rows)
	if err != nil {
		return nil, err
	}
	file, err := client.Files.New(ctx, openai.FileNewParams{File: content, Purpose: openai.FilePurposeFineTune})
	if err != nil {
		return nil, err
	}
	stored, err := client.Files.Content(ctx, file.ID)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(stored.Body)
	if err := errors.Join(err, stored.Body.Close()); err != nil {
		return nil, err
	}
	job, err := train(ctx, client, file.ID)
	if err != nil {
		return nil, err
	}
	report := map[string]any{"content": string(text), "job": json.RawMessage(job.RawJSON())}
	var messages []string
	events := client.FineTuning.Jobs.ListEventsAutoPaging(ctx, job.ID,
		openai.FineTuningJobListEventsParams{Limit: openai.Int(4)})
	for events.Next() {
		messages = append(messages, events.Current().Message)
	}
	steps := []int64{}
	checkpoints := client.FineTuning.Jobs.Checkpoints.ListAutoPaging(ctx, job.ID,
		openai.FineTuningJobCheckpointListParams{})
	for checkpoints.Next() {
		steps = append(steps, checkpoints.Current().StepNumber)
	}
	report["messages"], report["steps"] = messages, steps
	chat, err := client.Chat.Completions.New(ctx, openai.ChatCompletionNewParams{Model: job.FineTunedModel,
		MaxTokens: openai.Int(24), Temperature: openai.Float(0),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage(os.Getenv("PROMPT"))}})
	if err := errors.Join(err, events.Err(), checkpoints.Err()); err != nil {
		return nil, err
	}
	report["chat"] = chat.Choices[0].Message.Content
	_, err = client.Files.Get(ctx, "none")
	var refused *openai.Error
	if !errors.As(err, &refused) {
		return nil, fmt.Errorf("read a file that does not exist: expected an API error, not: %w", err)
	}
	report["missing"] = refused.StatusCode
	return report, nil
}

// train creates a fine-tuning job, waits for its end, and returns it.
func train(ctx context.Context, client openai.Client, file string) (*openai.FineTuningJob, error) {
	job, err := client.FineTuning.Jobs.New(ctx, openai.FineTuningJobNewParams{
		Model: openai.FineTuningJobNewParamsModel(os.Getenv("MODEL")), TrainingFile: file, Seed: openai.Int(7),
		Method: openai.FineTuningJobNewParamsMethod{Type: "dpo", Dpo: openai.DpoMethodParam{
			Hyperparameters: openai.DpoHyperparameters{
				NEpochs: openai.DpoHyperparametersNEpochsUnion{OfInt: openai.Int(1)},
				Beta:    openai.DpoHyperparametersBetaUnion{OfFloat: openai.Float(0.2)}}}}})
	for err == nil && job.Status != openai.FineTuningJobStatusSucceeded {
		if job.Status == openai.FineTuningJobStatusFailed {
			return nil, errors.New(job.Error.Message)
		}
		time.Sleep(200 * time.Millisecond)
		job, err = client.FineTuning.Jobs.Get(ctx, job.ID)
	}
	return job, err
}
