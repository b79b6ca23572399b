package external

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/internal/testutil"
)

var update = flag.Bool("update", false, "rewrite the files of testdata")

// TestBodies compares the request bodies for each server with testdata/bodies.golden.
func TestBodies(t *testing.T) {
	seed := uint64(1)<<63 + 5
	chat := &engines.Chat{
		Messages: []engines.Message{
			{Role: "system", Content: "be brief"}, {Role: "user", Content: "weather?", Name: "ann"},
			{Role: "assistant", Reasoning: "look it up", ToolCalls: []engines.ToolCall{{ID: "c1", Name: "weather",
				Arguments: `{"town":"Rome"}`}}},
			{Role: "tool", Content: "sunny", ToolCallID: "c1"},
		},
		Tools: []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"weather"}}`)},
	}
	sampled := engines.CompletionRequest{
		Prompt: "once", MaxTokens: 9, Stop: []string{"\n"}, Temperature: 0.5, TopP: 0.9, FrequencyPenalty: 0.1,
		PresencePenalty: -0.2,
		LogitBias:       map[int]float64{7: -100}, Seed: &seed, Logprobs: true, TopLogprobs: 3, CacheScope: "acme",
		Prediction: "upon a time", Speculation: "ngram",
	}
	filtered := sampled
	filtered.TopK, filtered.MinP, filtered.RepetitionPenalty = 40, 0.05, 1.1
	filtered.IgnoreEOS, filtered.ReturnTokenIDs = true, true
	typical := filtered
	typical.TypicalP, typical.MirostatTarget, typical.MirostatRate = 0.9, 8, 0.2
	reasoning := engines.CompletionRequest{Chat: chat, MaxTokens: 9, Logprobs: true, TopLogprobs: 2,
		Reasoning: &engines.Reasoning{Effort: "high"},
		Format:    &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"type":"object"}`)}}
	noReasoning := reasoning
	noReasoning.Reasoning = &engines.Reasoning{Effort: "none", History: "disabled"}
	budget := engines.CompletionRequest{Chat: chat, Reasoning: &engines.Reasoning{Budget: 2000},
		Format: &engines.ResponseFormat{Type: engines.FormatJSON}}
	grammar := engines.CompletionRequest{PromptTokens: []int{1, 2},
		Format: &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: `root ::= "a"`}}
	required := engines.CompletionRequest{Chat: &engines.Chat{Messages: chat.Messages[:2], Tools: chat.Tools,
		ToolChoice: &engines.ToolChoice{}}}
	forced := engines.CompletionRequest{Chat: &engines.Chat{Messages: chat.Messages[:2], Tools: chat.Tools,
		ToolChoice: &engines.ToolChoice{Name: "weather", Single: true}}}
	everything := typical
	everything.Stop = make([]string, 5)
	everything.RawOutput, everything.EchoLast, everything.Format = true, 3,
		&engines.ResponseFormat{Type: engines.FormatGrammar}
	everything.Reasoning = &engines.Reasoning{Budget: 5, History: "preserved"}

	var golden bytes.Buffer
	for _, line := range []struct {
		name string
		req  engines.CompletionRequest
	}{
		{"plain", engines.CompletionRequest{Prompt: "p"}}, {"sampled", sampled}, {"filtered", filtered},
		{"typical", typical}, {"chat", reasoning}, {"chat without reasoning", noReasoning},
		{"reasoning budget", budget}, {"grammar", grammar}, {"any tool call", required}, {"one tool call", forced},
		{"all fields", everything},
	} {
		for _, name := range Presets() {
			p := presets[name]
			path, b, err := p.bodyOf("model", 4096, &line.req)
			fmt.Fprintf(&golden, "%s: %s\n", name, line.name)
			if err != nil {
				fmt.Fprintf(&golden, "rejected: %v\n\n", err)
				continue
			}
			data := testutil.Marshal(t, b)
			fmt.Fprintf(&golden, "POST %s\n%s\n\n", path, data)
		}
	}
	if *update {
		require.NoError(t, os.WriteFile("testdata/bodies.golden", golden.Bytes(), 0o600))
	}
	want := testutil.ReadFile(t, "testdata/bodies.golden")
	require.Equal(t, string(want), golden.String())
}
