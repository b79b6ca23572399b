// Command transcribe is a test of openai-go against a server: it sends a recording for each
// response format, and prints the responses as one JSON object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

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

type client struct {
	openai.Client
	ctx  context.Context
	file string
}

func ask(ctx context.Context, file string) (map[string]any, error) {
	c := client{openai.NewClient(option.WithBaseURL(os.Getenv("BASE_URL")), option.WithAPIKey(os.Getenv("API_KEY")),
		option.WithMaxRetries(0)), ctx, file}
	report := map[string]any{}
	for name, what := range map[string]func() (any, error){
		"json": c.json, "text": c.text(openai.AudioResponseFormatText), "srt": c.text(openai.AudioResponseFormatSRT),
		"vtt":  c.text(openai.AudioResponseFormatVTT),
		"word": c.verbose("word"), "segment": c.verbose("segment"), "both": c.verbose("word", "segment"), "stream": c.stream,
		"refusal": c.refused,
	} {
		answer, err := what()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		report[name] = answer
	}
	return report, nil
}

// request returns the request for a transcript in a format. openai-go closes the file.
func (c client) request(format openai.AudioResponseFormat, granularities ...string) (openai.AudioTranscriptionNewParams,
	error) {
	file, err := os.Open(c.file)
	return openai.AudioTranscriptionNewParams{File: file, Model: os.Getenv("MODEL"), ResponseFormat: format,
		TimestampGranularities: granularities}, err
}

func (c client) json() (any, error) {
	body, err := c.request(openai.AudioResponseFormatJSON)
	if err != nil {
		return nil, err
	}
	answer, err := c.Audio.Transcriptions.New(c.ctx, body)
	if err != nil {
		return nil, err
	}
	return answer.Text, nil
}

func (c client) text(format openai.AudioResponseFormat) func() (any, error) {
	return func() (any, error) {
		body, err := c.request(format)
		if err != nil {
			return nil, err
		}
		var said string
		return &said, c.Post(c.ctx, "audio/transcriptions", body, &said)
	}
}

func (c client) verbose(granularities ...string) func() (any, error) {
	return func() (any, error) {
		body, err := c.request(openai.AudioResponseFormatVerboseJSON, granularities...)
		if err != nil {
			return nil, err
		}
		answer, err := c.Audio.Transcriptions.New(c.ctx, body)
		if err != nil {
			return nil, err
		}
		return map[string]any{"text": answer.Text, "language": answer.Language, "duration": answer.Duration,
			"words": len(answer.Words), "segments": len(answer.Segments)}, nil
	}
}

func (c client) stream() (any, error) {
	body, err := c.request(openai.AudioResponseFormatJSON)
	if err != nil {
		return nil, err
	}
	deltas, text := "", ""
	events := c.Audio.Transcriptions.NewStreaming(c.ctx, body)
	for events.Next() {
		switch event := events.Current().AsAny().(type) {
		case openai.TranscriptionTextDeltaEvent:
			deltas += event.Delta
		case openai.TranscriptionTextDoneEvent:
			text = event.Text
		}
	}
	return map[string]any{"deltas": deltas, "text": text}, events.Err()
}

func (c client) refused() (any, error) {
	body, err := c.request(openai.AudioResponseFormatJSON)
	if err != nil {
		return nil, err
	}
	body.Temperature = openai.Float(3)
	_, err = c.Audio.Transcriptions.New(c.ctx, body)
	var apiErr *openai.Error
	if !errors.As(err, &apiErr) {
		return nil, fmt.Errorf("temperature 3: unexpected response %v", err)
	}
	return map[string]any{"status": apiErr.StatusCode, "param": apiErr.Param, "message": apiErr.Message}, nil
}
