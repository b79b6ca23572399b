package api

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
)

// A clock advances one second each time it is read.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) tick() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Second)
	return c.now
}

func (c *clock) at(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// fakeReplicas is a routing.Replicas that responds with the function respond, or with echo if
// respond is nil.
type fakeReplicas struct {
	mu      sync.Mutex
	respond func(ctx context.Context, replica domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error)
	transcribe func(ctx context.Context, replica domain.Replica, req engines.TranscriptionRequest,
		emit func(engines.TranscriptEvent) error) (engines.Transcript, error)
	asked          []string // IDs of the replicas, in the order of requests
	reqs           []engines.CompletionRequest
	transcriptions []engines.TranscriptionRequest
	embed          func(context.Context, engines.EmbeddingRequest) (engines.Embedding, engines.Usage, error)
	embeddings     []engines.EmbeddingRequest
}

func (c *fakeReplicas) Complete(ctx context.Context, _ domain.Name, replica domain.Replica,
	req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	c.mu.Lock()
	c.asked, c.reqs = append(c.asked, replica.ID), append(c.reqs, req)
	respond := c.respond
	c.mu.Unlock()
	if respond != nil {
		return respond(ctx, replica, req, emit)
	}
	return echo(ctx, replica, req, emit)
}

// Embed returns a vector that begins with the number of bytes and the number of tokens of the
// input, unless embed is set.
func (c *fakeReplicas) Embed(ctx context.Context, _ domain.Name, replica domain.Replica, req engines.EmbeddingRequest,
) (engines.Embedding, engines.Usage, error) {
	c.mu.Lock()
	c.asked, c.embeddings = append(c.asked, replica.ID), append(c.embeddings, req)
	embed := c.embed
	c.mu.Unlock()
	if embed != nil {
		return embed(ctx, req)
	}
	vector := []float32{float32(len(req.Input)), float32(len(req.Tokens)), 0.1, -2.5}
	usage := engines.Usage{PromptTokens: max(1+len(req.Input), len(req.Tokens))}
	return engines.NewEmbedding(engines.Shorten(vector, req.Dimensions)), usage, nil
}

func (c *fakeReplicas) Transcribe(ctx context.Context, _ domain.Name, replica domain.Replica,
	req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	c.mu.Lock()
	c.asked, c.transcriptions = append(c.asked, replica.ID), append(c.transcriptions, req)
	transcribe := c.transcribe
	c.mu.Unlock()
	if transcribe != nil {
		return transcribe(ctx, replica, req, emit)
	}
	return transcribeText(ctx, req, emit)
}

// transcribeText transcribes a recording that contains text. Each word takes half a second, and each
// line is a segment.
func transcribeText(ctx context.Context, req engines.TranscriptionRequest,
	emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	text, err := fetchText(ctx, req.Audio.URL)
	if err != nil {
		return engines.Transcript{}, err
	}
	transcript := engines.Transcript{Language: "en"}
	for line := range strings.Lines(text) {
		segment := engines.Segment{Start: transcript.Duration, Text: strings.TrimSpace(line), AvgLogprob: -0.25,
			CompressionRatio: 1.5}
		for _, word := range strings.Fields(line) {
			segment.Words = append(segment.Words,
				engines.Word{Text: word, Start: transcript.Duration, End: transcript.Duration + 0.4,
					Probability: 0.9})
			transcript.Duration += 0.5
		}
		step := engines.TranscriptEvent{Seconds: transcript.Duration}
		if segment.End = transcript.Duration; len(segment.Words) > 0 {
			step.Segment = &segment
		}
		if err := emit(step); err != nil {
			return transcript, err
		}
	}
	return transcript, nil
}

// fetchText reads a recording from its URL without an API key, like a worker.
func fetchText(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the recording is answered with %d: %s", response.StatusCode, text)
	}
	return string(text), err
}

func (c *fakeReplicas) requestIDs() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.asked...)
}

// echo responds with the first MaxTokens words of the prompt, one word per token.
func echo(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
	emit func(engines.Chunk) error) (engines.Usage, error) {
	words := strings.Fields(req.Prompt)
	if req.Chat != nil {
		for _, m := range req.Chat.Messages {
			words = append(words, strings.Fields(m.Role+" "+m.Content)...)
		}
	}
	for _, token := range req.PromptTokens {
		words = append(words, fmt.Sprint("t", token))
	}
	usage, finish := engines.Usage{PromptTokens: len(words)}, engines.FinishStop
	if req.Echo {
		if err := emit(engines.Chunk{Text: req.Prompt, Echoed: true}); err != nil {
			return usage, err
		}
	}
	for i, word := range words {
		if i == req.MaxTokens {
			finish = engines.FinishLength
			break
		}
		usage.CompletionTokens++
		if err := emit(engines.Chunk{Text: word + " "}); err != nil {
			return usage, err
		}
	}
	return usage, emit(engines.Chunk{Finish: finish})
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

// arrivalsOf returns the directory to which signed URLs upload the code of an evaluator.
func arrivalsOf(row *projections.Row[domain.Evaluator]) string {
	return blobs.StagingPrefix(row.Name, row.CreateEvent, row.State.Uploads+1)
}
