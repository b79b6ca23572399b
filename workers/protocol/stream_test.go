package protocol

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestChunksFitIntoAMessage checks that a message whose chunks FitChunks selects has at most
// MaxMessage bytes, however large its chunks are.
func TestChunksFitIntoAMessage(t *testing.T) {
	var top []engines.Logprob
	worst := engines.Logprob{
		Token:    1 << 20,
		Text:     strings.Repeat("\x00", 64),
		Bytes:    make([]byte, 64),
		Offset:   1 << 20,
		Logprob:  -1.2345678901234567,
		Sampling: -1.2345678901234567,
	}
	for range 5 {
		top = append(top, worst)
	}
	worst.Top = top
	rich := engines.Chunk{Text: strings.Repeat("\x00", 256), Raw: strings.Repeat("\x00", 256)}
	for range engines.MaxChunk / 4 {
		rich.Tokens, rich.Logprobs = append(rich.Tokens, 1<<20), append(rich.Logprobs, worst)
	}
	for name, c := range map[string]struct {
		chunk engines.Chunk
		min   int
	}{
		"plain": {engines.Chunk{Text: "word ", Tokens: []int{5}}, MaxChunks},
		"rich":  {rich, 1},
		"a prompt": {engines.Chunk{Prompt: &engines.RenderedPrompt{Text: strings.Repeat("<", 4<<10),
			Tokens: make([]int, engines.MaxChunk)}}, 10},
		"a call": {engines.Chunk{ToolCalls: []engines.ToolCall{{Name: "f", Arguments: strings.Repeat(`"`, 4<<10)}}},
			10},
		"reasoning": {engines.Chunk{Reasoning: strings.Repeat("\n", 4<<10)}, 10},
	} {
		chunks := make([]engines.Chunk, 1000)
		for i := range chunks {
			chunks[i] = c.chunk
		}
		n := FitChunks(chunks, SizeOfChunk)
		require.GreaterOrEqual(t, n, c.min, name)
		require.LessOrEqual(t, n, MaxChunks, name)
		_, err := Marshal(CompletionMessage{Version: Version, Seq: 1, Chunks: chunks[:n], Total: &engines.Usage{}})
		require.NoError(t, err, name)
	}
	require.Zero(t, FitChunks(nil, SizeOfChunk))
}

func TestTranscriptEventsFitIntoAMessage(t *testing.T) {
	long := engines.Segment{Text: strings.Repeat("<", 4<<10), Speaker: "SPEAKER_00", Tokens: make([]int, 500)}
	for range 500 {
		long.Words = append(
			long.Words,
			engines.Word{
				Text:        "<words>",
				Start:       7199.123456789,
				End:         7199.987654321,
				Probability: 0.12345678901234567,
				Language:    "en",
				Speaker:     "SPEAKER_00",
			},
		)
	}
	for name, c := range map[string]struct {
		event engines.TranscriptEvent
		min   int
	}{"silence": {engines.TranscriptEvent{Seconds: 7199.123456789},
		MaxChunks}, "long": {engines.TranscriptEvent{Segment: &long}, 2}} {
		events := make([]engines.TranscriptEvent, 1000)
		for i := range events {
			events[i] = c.event
		}
		n := FitChunks(events, SizeOfTranscriptEvent)
		require.GreaterOrEqual(t, n, c.min, name)
		_, err := Marshal(
			TranscriptionMessage{Version: Version, Seq: 1, Chunks: events[:n], Total: &engines.Transcript{}},
		)
		require.NoError(t, err, name)
	}
}
