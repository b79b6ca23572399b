package external

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

// TestMain runs the test binary as a fake server if FAKE_SERVER is set or its name is one of programs:
// a simulated engine behind the API of that server.
func TestMain(m *testing.M) {
	if dialect := cmp.Or(os.Getenv("FAKE_SERVER"), programs[filepath.Base(os.Args[0])]); dialect != "" {
		serveFake(dialect)
	}
	os.Exit(m.Run())
}

// A fakeServer implements a server's API. It rejects fields that the real server does not have.
type fakeServer struct {
	dialect, mode string
	model         engines.Model
	adapters      sync.Map // name → directory
	flags         map[string]string
	recorder      *recorder
}

const fakeContextLength = 512

// waitsForDisconnect is a file in an adapter whose load the fake server carries out, but acknowledges
// only after the client has disconnected.
const waitsForDisconnect = "disconnect"

// fields lists the request fields that a server adds to OpenAI's API, by preset. The key "" lists
// the fields of OpenAI's API.
var fields = map[string][]string{
	"": {
		"model", "prompt", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "temperature",
		"top_p", "frequency_penalty", "presence_penalty", "stop", "logit_bias", "seed", "logprobs", "top_logprobs",
		"response_format", "reasoning_effort", "parallel_tool_calls",
	},
	VLLM: {
		"top_k", "min_p", "repetition_penalty", "ignore_eos", "return_token_ids", "cache_salt", "structured_outputs",
		"thinking_token_budget", "chat_template_kwargs",
	},
	LlamaCpp: {
		"top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "samplers", "ignore_eos", "mirostat",
		"mirostat_tau", "mirostat_eta", "grammar", "cache_prompt", "chat_template_kwargs",
	},
}

func serveFake(dialect string) {
	f := &fakeServer{dialect: dialect, mode: os.Getenv("FAKE_MODE"), flags: map[string]string{}, recorder: &recorder{}}
	for i, arg := range os.Args {
		if strings.HasPrefix(arg, "-") && i+1 < len(os.Args) {
			f.flags[arg] = os.Args[i+1]
		}
	}
	switch f.mode {
	case "exit":
		fmt.Fprintln(os.Stderr, "CUDA out of memory: buy more")
		os.Exit(3)
	case "readKey":
		key, _ := os.ReadFile(os.Getenv("FAKE_KEY"))
		user := "another user"
		if os.Getuid() == 0 {
			user = "root"
		}
		fmt.Fprintln(os.Stderr, "read:", string(key), user)
		os.Exit(3)
	case "flood":
		for range 64 {
			fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 20_000))
		}
	case "writeDevices":
		devices, _ := json.Marshal([]string{os.Getenv("CUDA_VISIBLE_DEVICES"), os.Getenv("CUDA_DEVICE_ORDER"),
			os.Getenv("HIP_VISIBLE_DEVICES"), f.flags["--tensor-parallel-size"]})
		_ = os.WriteFile(os.Getenv("FAKE_FILE"), devices, 0o600)
	case "writeArgs":
		args, _ := json.Marshal(os.Args[1:])
		_ = os.WriteFile(os.Getenv("FAKE_FILE"), args, 0o600)
	case "startOnce": // exits at its second start and all later ones
		if _, err := os.Stat(os.Getenv("FAKE_FILE")); err == nil {
			fmt.Fprintln(os.Stderr, "second start")
			os.Exit(4)
		}
		_ = os.WriteFile(os.Getenv("FAKE_FILE"), nil, 0o600)
	}
	if _, speech := dialects[dialect]; speech && os.Getenv("FAKE_SPEECH") != "" {
		s := &fakeSpeechServer{dialect: dialect, mode: f.mode}
		fmt.Fprintln(os.Stderr, http.ListenAndServe(net.JoinHostPort("127.0.0.1", f.flags["--port"]), s.routes(f.flags)))
		os.Exit(1)
	}
	var err error
	if programs[filepath.Base(os.Args[0])] != "" {
		if f.recorder, err = newRecorder(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	f.model, err = simulated.New(simulated.Options{ContextLength: fakeContextLength}).Completer.
		Load(context.Background(), engines.ModelFiles{Dir: os.TempDir()})
	if err == nil {
		err = http.ListenAndServe(net.JoinHostPort("127.0.0.1", f.flags["--port"]), f.routes())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (f *fakeServer) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if f.mode == "unhealthy" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(fakeMetrics)) })
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, body{"data": []body{{"id": baseName, "max_model_len": fakeContextLength,
			"meta": body{"n_params": 1000}}}})
	})
	mux.HandleFunc("GET /props", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, body{"total_slots": 4, "default_generation_settings": body{"n_ctx": fakeContextLength},
			"modalities": body{"vision": f.flags["--mmproj"] != ""}, "media_marker": fakeMarker})
	})
	mux.HandleFunc("POST /tokenize", f.tokenize)
	mux.HandleFunc("POST /detokenize", f.detokenize)
	mux.HandleFunc("POST /v1/load_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var b struct{ LoraName, LoraPath string }
		f.read(r, &b)
		if _, err := os.Stat(b.LoraPath + "/adapter_config.json"); err != nil {
			writeError(w, http.StatusBadRequest, "the adapter has no adapter_config.json")
			return
		}
		if _, loaded := f.adapters.LoadOrStore(b.LoraName, b.LoraPath); loaded {
			writeError(w, http.StatusBadRequest, "The lora adapter '"+b.LoraName+"' has already been loaded.")
			return
		}
		if _, err := os.Stat(b.LoraPath + "/" + waitsForDisconnect); err == nil {
			_ = os.WriteFile(os.Getenv("FAKE_FILE"), nil, 0o600)
			<-r.Context().Done()
		}
		fmt.Fprint(w, "Success: LoRA adapter added successfully.")
	})
	mux.HandleFunc("POST /v1/unload_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var b struct{ LoraName string }
		f.read(r, &b)
		if _, loaded := f.adapters.LoadAndDelete(b.LoraName); !loaded {
			writeError(w, http.StatusNotFound, "The lora adapter '"+b.LoraName+"' cannot be found.")
			return
		}
		fmt.Fprint(w, "Success: LoRA adapter removed successfully.")
	})
	mux.HandleFunc("POST /v1/embeddings", f.embed)
	mux.HandleFunc("POST /v1/completions", f.complete)
	mux.HandleFunc("POST /v1/chat/completions", f.complete)
	mux.HandleFunc("POST /completion", f.completeNative)
	mux.HandleFunc("POST /crash", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "Segmentation fault")
		os.Exit(11)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := os.Getenv(presets[f.dialect].keyEnv); r.URL.Path != "/health" &&
			r.Header.Get("Authorization") != "Bearer "+key {
			writeError(w, http.StatusUnauthorized, "Invalid API Key")
			return
		}
		if err := f.recorder.record(r); err != nil {
			writeError(w, http.StatusInternalServerError, err.Error())
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func writeJSON(w http.ResponseWriter, b any) { _ = json.NewEncoder(w).Encode(b) }

func writeError(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	writeJSON(w, body{"error": body{"message": message, "type": "BadRequestError", "code": status}})
}

func (f *fakeServer) read(r *http.Request, out any) {
	data, _ := io.ReadAll(r.Body)
	fieldNames := strings.NewReplacer("lora_name", "LoraName", "lora_path", "LoraPath")
	_ = json.Unmarshal([]byte(fieldNames.Replace(string(data))), out)
}

func (f *fakeServer) tokenize(w http.ResponseWriter, r *http.Request) {
	var b struct{ Prompt, Content string }
	f.read(r, &b)
	writeJSON(w, body{"tokens": tokensOfText(b.Prompt + b.Content)})
}

// tokensOfText returns the token 1 for the start of the text, followed by one token for each byte.
func tokensOfText(text string) []int {
	tokens := []int{1}
	for _, c := range []byte(text) {
		tokens = append(tokens, int(c))
	}
	return tokens
}

// embed responds as vLLM does, or as a server whose model computes no embeddings.
func (f *fakeServer) embed(w http.ResponseWriter, r *http.Request) {
	switch f.mode {
	case "noEmbeddings404":
		w.WriteHeader(http.StatusNotFound)
		writeJSON(w, body{"detail": "Not Found"})
		return
	case "noEmbeddings400":
		writeError(w, http.StatusBadRequest, "The model does not support Embeddings API")
		return
	case "noEmbeddings501":
		writeError(w, http.StatusNotImplemented, "This server does not support embeddings. Start it with `--embeddings`")
		return
	}
	var in struct {
		Model  string
		Input  json.RawMessage
		Format string `json:"encoding_format"`
	}
	data, _ := io.ReadAll(r.Body)
	req := engines.EmbeddingRequest{}
	if err := json.Unmarshal(data, &in); err != nil || in.Model != baseName || in.Format != "float" ||
		json.Unmarshal(in.Input, &req.Input) != nil && json.Unmarshal(in.Input, &req.Tokens) != nil {
		writeError(w, http.StatusBadRequest, "invalid request: "+string(data))
		return
	}
	embedding, usage, err := f.model.(engines.Embedder).Embed(r.Context(), req)
	if err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	writeJSON(w, body{"object": "list", "data": []body{{"object": "embedding", "index": 0,
		"embedding": embedding.Vector()}}, "usage": body{"prompt_tokens": usage.PromptTokens}})
}

func (f *fakeServer) detokenize(w http.ResponseWriter, r *http.Request) {
	var b struct{ Tokens []int }
	f.read(r, &b)
	var text []byte
	for _, token := range b.Tokens {
		if token != 1 {
			text = append(text, byte(token))
		}
	}
	writeJSON(w, body{map[string]string{VLLM: "prompt", LlamaCpp: "content"}[f.dialect]: string(text)})
}

// A fakeRequest holds the fields of a request that the fake server uses.
type fakeRequest struct {
	Model    string
	Prompt   json.RawMessage
	Messages []struct {
		Role    string
		Content fakeContent
	}
	Tools       []json.RawMessage
	MaxTokens   int     `json:"max_tokens"`
	Temperature float64 `json:"temperature"`
	Seed        *uint64 `json:"seed"`
	Stop        []string
	IgnoreEOS   bool `json:"ignore_eos"`
	Logprobs    any
}

func (f *fakeServer) complete(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	var all map[string]json.RawMessage
	var in fakeRequest
	if err := errors.Join(json.Unmarshal(data, &all), json.Unmarshal(data, &in)); err != nil {
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(fields[""], field) && !slices.Contains(fields[f.dialect], field) {
			writeError(w, http.StatusBadRequest, "unknown field "+field)
			return
		}
	}
	req := engines.CompletionRequest{MaxTokens: in.MaxTokens, Temperature: in.Temperature, Seed: in.Seed,
		Stop: in.Stop, IgnoreEOS: in.IgnoreEOS}
	if why := f.rejectsImages(in); why != "" {
		writeError(w, http.StatusBadRequest, why)
		return
	}
	prompt := f.prompt(&req, in)
	_, adapter := f.adapters.Load(in.Model)
	switch {
	case in.Model != baseName && !adapter && !strings.HasPrefix(f.flags["--lora-modules"], in.Model+"="):
		writeError(w, http.StatusNotFound, "The model `"+in.Model+"` does not exist.")
	case in.MaxTokens < 1:
		writeError(w, http.StatusBadRequest, "max_tokens must be at least 1")
	case f.dialect == VLLM && prompt+in.MaxTokens > fakeContextLength:
		writeError(w, http.StatusBadRequest, "maximum context length is 512 tokens")
	default:
		f.stream(w, r, req, in)
	}
}

// prompt sets the prompt or the conversation of req and returns the number of its tokens.
func (f *fakeServer) prompt(req *engines.CompletionRequest, in fakeRequest) int {
	if in.Messages != nil {
		req.Chat = &engines.Chat{}
		n := 1
		for _, m := range in.Messages {
			req.Chat.Messages = append(req.Chat.Messages, engines.Message{Role: m.Role, Content: string(m.Content)})
			n += len(m.Role) + len(m.Content) + 3
		}
		return n
	}
	if json.Unmarshal(in.Prompt, &req.PromptTokens) == nil {
		return len(req.PromptTokens)
	}
	_ = json.Unmarshal(in.Prompt, &req.Prompt)
	return len(req.Prompt) + 1
}

// stream writes the completion as an event stream.
func (f *fakeServer) stream(w http.ResponseWriter, r *http.Request, req engines.CompletionRequest, in fakeRequest) {
	started := false
	event := func(b body) error {
		if !started {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			started = true
		}
		data, _ := json.Marshal(b)
		_, err := fmt.Fprintf(w, "data: %s\n\n", data)
		w.(http.Flusher).Flush()
		return err
	}
	first := true
	usage, err := f.model.Complete(r.Context(), req, func(c engines.Chunk) error {
		switch f.mode {
		case "invalidEvent":
			w.Header().Set("Content-Type", "text/event-stream")
			_, err := fmt.Fprint(w, "data: {\"choices\": [nonsense\n\n")
			return err
		case "cutWithinEvent":
			if !first {
				_, _ = fmt.Fprint(w, "data: {\"choices\": [")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		case "cutBetweenEvents":
			if !first {
				panic(http.ErrAbortHandler)
			}
		case "endless":
			for r.Context().Err() == nil {
				if err := event(f.choice(in, engines.Chunk{Text: "more "}, false)); err != nil {
					break
				}
			}
			_ = os.WriteFile(os.Getenv("FAKE_FILE"), nil, 0o600)
			return r.Context().Err()
		case "errorEvent":
			return event(body{"error": body{"message": "EngineDeadError", "code": 500}})
		}
		defer func() { first = false }()
		return event(f.choice(in, c, first))
	})
	var fault *domain.Error
	if errors.As(err, &fault) && !started {
		writeError(w, http.StatusBadRequest, fault.Message)
		return
	}
	_ = event(body{"choices": []body{}, "usage": body{"prompt_tokens": usage.PromptTokens,
		"completion_tokens":     usage.CompletionTokens,
		"prompt_tokens_details": body{"cached_tokens": 1}}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// choice returns a chunk as an event in the server's format. first is true for the first chunk of a
// completion.
func (f *fakeServer) choice(in fakeRequest, c engines.Chunk, first bool) body {
	one := body{"index": 0, "finish_reason": nil}
	if c.Finish != "" {
		one["finish_reason"] = c.Finish
	}
	if in.Messages == nil {
		one["text"] = c.Text
	} else {
		one["delta"] = body{"content": c.Text}
		if len(in.Tools) > 0 && first {
			one["delta"] = body{"reasoning_content": "hm", "tool_calls": []body{{"index": 0, "id": "call-1",
				"type": "function", "function": body{"name": "f", "arguments": `{"a":`}}}}
		} else if len(in.Tools) > 0 && c.Finish != "" {
			one["delta"] = body{"tool_calls": []body{{"index": 0, "function": body{"arguments": `1}`}}}}
			one["finish_reason"] = "tool_calls"
		}
	}
	e := body{"choices": []body{one}}
	if f.dialect == VLLM {
		one["token_ids"] = c.Tokens
		if first {
			one["prompt_token_ids"] = []int{1, 2, 3}
		}
	}
	if in.Logprobs != nil && in.Logprobs != false && len(c.Tokens) > 0 {
		one["logprobs"] = f.logprobs(in, c)
	}
	return e
}

func (f *fakeServer) logprobs(in fakeRequest, c engines.Chunk) body {
	if f.dialect == LlamaCpp || in.Messages != nil {
		token := body{
			"token": c.Text, "bytes": bytesOf(c.Text), "logprob": -0.5,
			"top_logprobs": []body{{"token": c.Text, "logprob": -0.5}},
		}
		if f.dialect == LlamaCpp {
			token["id"] = c.Tokens[0]
		}
		return body{"content": []body{token}}
	}
	return body{
		"tokens": []string{c.Text}, "token_logprobs": []float64{-0.5},
		"top_logprobs": []body{{c.Text: -0.5, " or": -1.5}},
	}
}

// bytesOf returns the bytes of a text as numbers: JSON encodes []byte in base64.
func bytesOf(text string) []int {
	all := []int{}
	for _, b := range []byte(text) {
		all = append(all, int(b))
	}
	return all
}
