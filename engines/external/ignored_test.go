package external

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// fieldsOf returns the fields of a struct, as TYPE.FIELD.
func fieldsOf[T any]() (names []string) {
	t := reflect.TypeFor[T]()
	for f := range t.Fields() {
		names = append(names, t.Name()+"."+f.Name)
	}
	return names
}

// changed reports whether the two bodies or command lines differ, or an error rejects the second.
func changed(t *testing.T, before, after any, err error) bool {
	t.Helper()
	if err != nil {
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		return true
	}
	return !reflect.DeepEqual(before, after)
}

// requestChanges changes, one at a time, each field of a request. See requestContexts for a field
// whose effect depends on another one.
var requestChanges = map[string]func(*engines.CompletionRequest){
	"CompletionRequest.Prompt":       func(r *engines.CompletionRequest) { r.Prompt = "other" },
	"CompletionRequest.PromptTokens": func(r *engines.CompletionRequest) { r.PromptTokens = []int{1} },
	"CompletionRequest.Chat":         func(r *engines.CompletionRequest) { r.Chat = &engines.Chat{} },
	"CompletionRequest.Images": func(r *engines.CompletionRequest) {
		r.Images = []*engines.Image{testImage(1, 1)}
	},
	"CompletionRequest.MaxTokens":         func(r *engines.CompletionRequest) { r.MaxTokens = 7 },
	"CompletionRequest.Stop":              func(r *engines.CompletionRequest) { r.Stop = []string{"x"} },
	"CompletionRequest.IgnoreEOS":         func(r *engines.CompletionRequest) { r.IgnoreEOS = true },
	"CompletionRequest.Temperature":       func(r *engines.CompletionRequest) { r.Temperature = 0.3 },
	"CompletionRequest.TopK":              func(r *engines.CompletionRequest) { r.TopK = 3 },
	"CompletionRequest.TopP":              func(r *engines.CompletionRequest) { r.TopP = 0.3 },
	"CompletionRequest.MinP":              func(r *engines.CompletionRequest) { r.MinP = 0.3 },
	"CompletionRequest.TypicalP":          func(r *engines.CompletionRequest) { r.TypicalP = 0.3 },
	"CompletionRequest.FrequencyPenalty":  func(r *engines.CompletionRequest) { r.FrequencyPenalty = 0.3 },
	"CompletionRequest.PresencePenalty":   func(r *engines.CompletionRequest) { r.PresencePenalty = 0.3 },
	"CompletionRequest.RepetitionPenalty": func(r *engines.CompletionRequest) { r.RepetitionPenalty = 1.3 },
	"CompletionRequest.LogitBias":         func(r *engines.CompletionRequest) { r.LogitBias = map[int]float64{1: 2} },
	"CompletionRequest.MirostatTarget":    func(r *engines.CompletionRequest) { r.MirostatTarget = 4 },
	"CompletionRequest.MirostatRate": func(r *engines.CompletionRequest) {
		r.MirostatTarget, r.MirostatRate = 3, 0.5
	},
	"CompletionRequest.Seed":        func(r *engines.CompletionRequest) { r.Seed = new(uint64) },
	"CompletionRequest.Logprobs":    func(r *engines.CompletionRequest) { r.Logprobs = true },
	"CompletionRequest.TopLogprobs": func(r *engines.CompletionRequest) { r.Logprobs, r.TopLogprobs = true, 2 },
	"CompletionRequest.RawOutput":   func(r *engines.CompletionRequest) { r.RawOutput = true },
	"CompletionRequest.Format": func(r *engines.CompletionRequest) {
		r.Format = &engines.ResponseFormat{Type: engines.FormatJSON}
	},
	"CompletionRequest.Reasoning": func(r *engines.CompletionRequest) {
		r.Reasoning = &engines.Reasoning{Effort: "low"}
	},
	"CompletionRequest.Prediction":  func(r *engines.CompletionRequest) { r.Prediction = "x" },
	"CompletionRequest.Speculation": func(r *engines.CompletionRequest) { r.Speculation = "x" },
	"ResponseFormat.Type": func(r *engines.CompletionRequest) {
		r.Format = &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: "g"}
	},
	"ResponseFormat.Schema": func(r *engines.CompletionRequest) {
		r.Format = &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(`{"type":"null"}`)}
	},
	"ResponseFormat.Grammar": func(r *engines.CompletionRequest) {
		r.Format = &engines.ResponseFormat{Type: engines.FormatGrammar, Grammar: "h"}
	},
	"Reasoning.Effort": func(r *engines.CompletionRequest) {
		r.Chat, r.Reasoning = chatWithReasoning(), &engines.Reasoning{Effort: "low"}
	},
	"Reasoning.Budget": func(r *engines.CompletionRequest) {
		r.Chat, r.Reasoning = chatWithReasoning(), &engines.Reasoning{Budget: 9}
	},
	"Reasoning.History": func(r *engines.CompletionRequest) {
		r.Chat, r.Reasoning = chatWithReasoning(), &engines.Reasoning{History: "disabled"}
	},
	"Chat.Messages": func(r *engines.CompletionRequest) {
		r.Chat = chatWithReasoning()
		r.Chat.Messages[0].Content = "x"
	},
	"Chat.Tools": func(r *engines.CompletionRequest) {
		r.Chat = chatWithReasoning()
		r.Chat.Tools = nil
	},
	"Chat.ToolChoice": func(r *engines.CompletionRequest) {
		r.Chat = chatWithReasoning()
		r.Chat.ToolChoice = &engines.ToolChoice{}
	},
	"ToolChoice.Name": func(r *engines.CompletionRequest) {
		r.Chat = chatWithReasoning()
		r.Chat.ToolChoice = &engines.ToolChoice{Name: "f"}
	},
	"ToolChoice.Single": func(r *engines.CompletionRequest) {
		r.Chat = chatWithReasoning()
		r.Chat.ToolChoice = &engines.ToolChoice{Single: true}
	},
}

// requestContexts sets, for each field of requestChanges whose effect depends on another field,
// that other field in both of the compared requests.
var requestContexts = map[string]func(*engines.CompletionRequest){
	"CompletionRequest.MirostatRate": func(r *engines.CompletionRequest) { r.MirostatTarget = 3 },
	"CompletionRequest.TopLogprobs":  func(r *engines.CompletionRequest) { r.Logprobs, r.TopLogprobs = true, 1 },
	"ResponseFormat.Grammar":         requestChanges["ResponseFormat.Type"],
	"Reasoning.Effort":               func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"Reasoning.Budget":               func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"Reasoning.History":              func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"Chat.Messages":                  func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"Chat.Tools":                     func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"Chat.ToolChoice":                func(r *engines.CompletionRequest) { r.Chat = chatWithReasoning() },
	"ToolChoice.Name":                requestChanges["Chat.ToolChoice"],
	"ToolChoice.Single":              requestChanges["Chat.ToolChoice"],
}

func chatWithReasoning() *engines.Chat {
	return &engines.Chat{Messages: []engines.Message{{Role: "user", Content: "a"},
		{Role: "assistant", Content: "b", Reasoning: "c"}, {Role: "user", Content: "d"}},
		Tools: []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"f"}}`)}}
}

// outsideOfBodies are the fields that TestFieldsOfRequestsAct does not change. model.Complete
// itself reads the addon and what to return (the prompt, token IDs). CacheScope reaches a server in
// a way of each preset: as cache_salt (vLLM), through setPromptCache (llama.cpp) or not at all
// (OpenAI).
var outsideOfBodies = []string{"CompletionRequest.Addon", "CompletionRequest.Echo", "CompletionRequest.EchoLast",
	"CompletionRequest.ReturnTokenIDs", "CompletionRequest.CacheScope"}

// TestFieldsOfRequestsAct checks for each preset and each field of a request that the server receives the
// field, or that an error rejects it, or that Ignored names it.
func TestFieldsOfRequestsAct(t *testing.T) {
	names := slices.Concat(fieldsOf[engines.CompletionRequest](), fieldsOf[engines.ResponseFormat](),
		fieldsOf[engines.Reasoning](), fieldsOf[engines.Chat](), fieldsOf[engines.ToolChoice]())
	require.ElementsMatch(t, names, append(slices.Collect(maps.Keys(requestChanges)), outsideOfBodies...))
	for _, preset := range Presets() {
		p := presets[preset]
		for name, change := range requestChanges {
			before := engines.CompletionRequest{Prompt: "p <image>", MaxTokens: 5}
			if context := requestContexts[name]; context != nil {
				context(&before)
			}
			after := before
			change(&after)
			path, first, err := p.bodyOf("m", 512, &before)
			if err != nil {
				continue // the server does not support the field on which this one depends
			}
			otherPath, second, err := p.bodyOf("m", 512, &after)
			acts := changed(t, []any{path, first}, []any{otherPath, second}, err)
			if name == "CompletionRequest.Images" && p.imageCompletions == "" {
				acts = true // model.CheckImages rejects them
			}
			require.Equal(t, !slices.Contains(Ignored(preset), name), acts, "%s: %s", preset, name)
		}
	}
}

// fileChanges sets, one at a time, each field of the model files and settings with which a server
// is started.
var fileChanges = map[string]func(*engines.ModelFiles){
	"ModelFiles.Dir":         func(f *engines.ModelFiles) { f.Dir = "/other" },
	"ModelFiles.AdapterDir":  func(f *engines.ModelFiles) { f.AdapterDir = "/adapter" },
	"ModelFiles.DraftDir":    func(f *engines.ModelFiles) { f.DraftDir = "/draft" },
	"ModelFiles.DeviceShare": func(f *engines.ModelFiles) { f.DeviceShare = 250 },
	"ModelFiles.LongPrompts": func(f *engines.ModelFiles) { f.LongPrompts = true },
	"ModelFiles.Devices": func(f *engines.ModelFiles) {
		f.Devices = []engines.Device{{Type: "VENDOR_A_L4_24GB", Index: 1}}
	},
	"SpeculationMode.NgramLength": func(f *engines.ModelFiles) { f.Speculation.NgramLength = 3 },
	"SpeculationMode.Tokens": func(f *engines.ModelFiles) {
		f.Speculation.NgramLength, f.Speculation.Tokens, f.DraftDir = 3, 7, "/d"
	},
	"SpeculationMode.Disabled": func(f *engines.ModelFiles) { f.DraftDir, f.Speculation.Disabled = "/d", true },
}

var fileContexts = map[string]func(*engines.ModelFiles){
	"SpeculationMode.Tokens":   func(f *engines.ModelFiles) { f.Speculation.NgramLength, f.DraftDir = 3, "/d" },
	"SpeculationMode.Disabled": func(f *engines.ModelFiles) { f.DraftDir = "/d" },
}

// notOptions are the fields that TestFieldsOfModelsAct does not change. ContextLength limits
// requests and is no command-line option (see TestContextLengthOfTheReplica). fileChanges has the
// fields of Speculation one by one. Servers keep weights and KV cache in device memory, so they
// ignore the limits of host memory.
var notOptions = []string{"ModelFiles.ContextLength", "ModelFiles.Speculation", "ModelFiles.MemoryBytes",
	"ModelFiles.DraftMemoryBytes"}

// TestFieldsOfModelsAct checks for each preset and each field of a model's files and settings that it
// changes how the server is started, or that an error rejects it, or that Ignored names it.
func TestFieldsOfModelsAct(t *testing.T) {
	names := slices.Concat(fieldsOf[engines.ModelFiles](), fieldsOf[engines.SpeculationMode]())
	require.ElementsMatch(t, names, append(slices.Collect(maps.Keys(fileChanges)), notOptions...))
	for _, preset := range Presets() {
		p := presets[preset]
		command := p.command
		if preset == OpenAI {
			command = "server {dir} --port {port} {adapter}"
		}
		words, err := parse(command)
		require.NoError(t, err)
		start := func(files engines.ModelFiles) []string {
			at := argumentsOf(files)
			at.gguf = at.dir + "/model.gguf" // as findFiles sets it
			return append(p.commandLine(words, at), engines.VisibleDevicesEnv(at.devices)...)
		}
		for name, change := range fileChanges {
			before := engines.ModelFiles{Dir: "/model"}
			if context := fileContexts[name]; context != nil {
				context(&before)
			}
			after := before
			change(&after)
			acts := !slices.Equal(start(before), start(after))
			if after.DraftDir != "" && p.drafts == nil && name != "SpeculationMode.Tokens" {
				acts = true // completer.open rejects a draft model
			}
			if after.DeviceShare > 0 && !p.sharesDevices(words) {
				acts = true // completer.open rejects a share
			}
			require.Equal(t, !slices.Contains(Ignored(preset), name), acts, "%s: %s", preset, name)
		}
		require.Equal(t, p.tokenize == nil, slices.Contains(Ignored(preset), "ModelFiles.ContextLength"), preset)
	}
}
