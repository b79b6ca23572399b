package external

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

// TestMain makes this test's own program the server that it starts: an engine
// that is simulated, behind the interface of the server that FAKE_SERVER names.
func TestMain(m *testing.M) {
	if dialect := os.Getenv("FAKE_SERVER"); dialect != "" {
		serveFake(dialect)
	}
	os.Exit(m.Run())
}

// A fake speaks a server's dialect. It takes no field that the real one does
// not have.
type fake struct {
	dialect, mode string
	model         engines.Model
	adapters      sync.Map // name → folder
	flags         map[string]string
}

const fakeWindow = 512

// fields are those that each server takes: OpenAI's, and its own.
var fields = map[string][]string{
	"": {"model", "prompt", "messages", "tools", "tool_choice", "stream", "stream_options", "max_tokens", "temperature", "top_p",
		"frequency_penalty", "presence_penalty", "stop", "logit_bias", "seed", "logprobs", "top_logprobs", "response_format", "reasoning_effort"},
	VLLM: {"top_k", "min_p", "repetition_penalty", "ignore_eos", "return_token_ids", "cache_salt", "structured_outputs",
		"thinking_token_budget", "chat_template_kwargs"},
	LlamaCpp: {"top_k", "min_p", "typical_p", "repeat_penalty", "repeat_last_n", "samplers", "ignore_eos", "mirostat", "mirostat_tau",
		"mirostat_eta", "grammar", "cache_prompt", "chat_template_kwargs"},
}

func serveFake(dialect string) {
	f := &fake{dialect: dialect, mode: os.Getenv("FAKE_MODE"), flags: map[string]string{}}
	for i, arg := range os.Args {
		if strings.HasPrefix(arg, "-") && i+1 < len(os.Args) {
			f.flags[arg] = os.Args[i+1]
		}
	}
	switch f.mode {
	case "dies":
		fmt.Fprintln(os.Stderr, "CUDA out of memory: buy more")
		os.Exit(3)
	case "peeks":
		key, _ := os.ReadFile(os.Getenv("FAKE_KEY"))
		user := "another user"
		if os.Getuid() == 0 {
			user = "root"
		}
		fmt.Fprintln(os.Stderr, "saw:", string(key), user)
		os.Exit(3)
	case "floods":
		for range 64 {
			fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 20_000))
		}
	case "tells":
		told, _ := json.Marshal([]string{os.Getenv("CUDA_VISIBLE_DEVICES"), os.Getenv("CUDA_DEVICE_ORDER"), os.Getenv("HIP_VISIBLE_DEVICES"), f.flags["--tensor-parallel-size"]})
		_ = os.WriteFile(os.Getenv("FAKE_FILE"), told, 0o600)
	case "once": // dies at its second start and at all later ones
		if _, err := os.Stat(os.Getenv("FAKE_FILE")); err == nil {
			fmt.Fprintln(os.Stderr, "never again")
			os.Exit(4)
		}
		_ = os.WriteFile(os.Getenv("FAKE_FILE"), nil, 0o600)
	}
	if _, speech := dialects[dialect]; speech && os.Getenv("FAKE_SPEECH") != "" {
		ear := &fakeEar{dialect: dialect, mode: f.mode}
		fmt.Fprintln(os.Stderr, http.ListenAndServe(net.JoinHostPort("127.0.0.1", f.flags["--port"]), ear.routes(f.flags)))
		os.Exit(1)
	}
	var err error
	f.model, err = simulated.New(simulated.Options{ContextLength: fakeWindow}).Completer.Load(context.Background(), engines.ModelFiles{Dir: os.TempDir()})
	if err == nil {
		err = http.ListenAndServe(net.JoinHostPort("127.0.0.1", f.flags["--port"]), f.routes())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func (f *fake) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) {
		if f.mode == "hangs" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		f.say(w, body{"data": []body{{"id": baseName, "max_model_len": fakeWindow, "meta": body{"n_params": 1000}}}})
	})
	mux.HandleFunc("GET /props", func(w http.ResponseWriter, _ *http.Request) {
		f.say(w, body{"total_slots": 4, "default_generation_settings": body{"n_ctx": fakeWindow}})
	})
	mux.HandleFunc("POST /tokenize", f.tokenize)
	mux.HandleFunc("POST /detokenize", f.detokenize)
	mux.HandleFunc("POST /v1/load_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var b struct{ LoraName, LoraPath string }
		f.hear(r, &b)
		if _, err := os.Stat(b.LoraPath + "/adapter_config.json"); err != nil {
			f.refuse(w, http.StatusBadRequest, "the adapter has no adapter_config.json")
			return
		}
		f.adapters.Store(b.LoraName, b.LoraPath)
		fmt.Fprint(w, "Success: LoRA adapter added successfully.")
	})
	mux.HandleFunc("POST /v1/unload_lora_adapter", func(w http.ResponseWriter, r *http.Request) {
		var b struct{ LoraName string }
		f.hear(r, &b)
		f.adapters.Delete(b.LoraName)
	})
	mux.HandleFunc("POST /v1/completions", f.complete)
	mux.HandleFunc("POST /v1/chat/completions", f.complete)
	mux.HandleFunc("POST /die", func(http.ResponseWriter, *http.Request) {
		fmt.Fprintln(os.Stderr, "Segmentation fault")
		os.Exit(11)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if key := os.Getenv(presets[f.dialect].keyEnv); r.URL.Path != "/health" && r.Header.Get("Authorization") != "Bearer "+key {
			f.refuse(w, http.StatusUnauthorized, "Invalid API Key")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (f *fake) say(w http.ResponseWriter, b any) { _ = json.NewEncoder(w).Encode(b) }

func (f *fake) refuse(w http.ResponseWriter, status int, message string) {
	w.WriteHeader(status)
	f.say(w, body{"error": body{"message": message, "type": "BadRequestError", "code": status}})
}

func (f *fake) hear(r *http.Request, out any) {
	data, _ := io.ReadAll(r.Body)
	_ = json.Unmarshal([]byte(strings.NewReplacer("lora_name", "LoraName", "lora_path", "LoraPath").Replace(string(data))), out)
}

// A token is a byte; the first stands for the beginning.
func (f *fake) tokenize(w http.ResponseWriter, r *http.Request) {
	var b struct{ Prompt, Content string }
	f.hear(r, &b)
	f.say(w, body{"tokens": tokensOfText(b.Prompt + b.Content)})
}

func tokensOfText(text string) []int {
	tokens := []int{1}
	for _, c := range []byte(text) {
		tokens = append(tokens, int(c))
	}
	return tokens
}

func (f *fake) detokenize(w http.ResponseWriter, r *http.Request) {
	var b struct{ Tokens []int }
	f.hear(r, &b)
	var text []byte
	for _, token := range b.Tokens {
		if token != 1 {
			text = append(text, byte(token))
		}
	}
	f.say(w, body{map[string]string{VLLM: "prompt", LlamaCpp: "content"}[f.dialect]: string(text)})
}

// asked is what the fake understands of a request.
type asked struct {
	Model       string
	Prompt      json.RawMessage
	Messages    []struct{ Role, Content string }
	Tools       []json.RawMessage
	MaxTokens   int     `json:"max_tokens"`
	Temperature float64 `json:"temperature"`
	Seed        *uint64 `json:"seed"`
	Stop        []string
	IgnoreEOS   bool `json:"ignore_eos"`
	Logprobs    any
}

func (f *fake) complete(w http.ResponseWriter, r *http.Request) {
	data, _ := io.ReadAll(r.Body)
	var all map[string]json.RawMessage
	var ask asked
	if err := errors.Join(json.Unmarshal(data, &all), json.Unmarshal(data, &ask)); err != nil {
		f.refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	for _, field := range slices.Sorted(maps.Keys(all)) {
		if !slices.Contains(fields[""], field) && !slices.Contains(fields[f.dialect], field) {
			f.refuse(w, http.StatusBadRequest, "there is no field "+field)
			return
		}
	}
	req := engines.CompletionRequest{MaxTokens: ask.MaxTokens, Temperature: ask.Temperature, Seed: ask.Seed, Stop: ask.Stop, IgnoreEOS: ask.IgnoreEOS}
	prompt := f.prompt(&req, ask)
	_, adapter := f.adapters.Load(ask.Model)
	switch {
	case ask.Model != baseName && !adapter && !strings.HasPrefix(f.flags["--lora-modules"], ask.Model+"="):
		f.refuse(w, http.StatusNotFound, "The model `"+ask.Model+"` does not exist.")
	case ask.MaxTokens < 1:
		f.refuse(w, http.StatusBadRequest, "max_tokens must be at least 1")
	case f.dialect == VLLM && prompt+ask.MaxTokens > fakeWindow:
		f.refuse(w, http.StatusBadRequest, "maximum context length is 512 tokens")
	default:
		f.stream(w, r, req, ask)
	}
}

// prompt fills in what is to be continued, and counts its tokens.
func (f *fake) prompt(req *engines.CompletionRequest, ask asked) int {
	if ask.Messages != nil {
		req.Chat = &engines.Chat{}
		n := 1
		for _, m := range ask.Messages {
			req.Chat.Messages = append(req.Chat.Messages, engines.Message{Role: m.Role, Content: m.Content})
			n += len(m.Role) + len(m.Content) + 3
		}
		return n
	}
	if json.Unmarshal(ask.Prompt, &req.PromptTokens) == nil {
		return len(req.PromptTokens)
	}
	_ = json.Unmarshal(ask.Prompt, &req.Prompt)
	return len(req.Prompt) + 1
}

// stream answers piece by piece.
func (f *fake) stream(w http.ResponseWriter, r *http.Request, req engines.CompletionRequest, ask asked) {
	began := false
	event := func(b body) error {
		if !began {
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			began = true
		}
		data, _ := json.Marshal(b)
		_, err := fmt.Fprintf(w, "data: %s\n\n", data)
		w.(http.Flusher).Flush()
		return err
	}
	first := true
	usage, err := f.model.Complete(r.Context(), req, func(c engines.Chunk) error {
		switch f.mode {
		case "garbage":
			w.Header().Set("Content-Type", "text/event-stream")
			_, err := fmt.Fprint(w, "data: {\"choices\": [nonsense\n\n")
			return err
		case "tears":
			if !first {
				_, _ = fmt.Fprint(w, "data: {\"choices\": [")
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
		case "cuts":
			if !first {
				panic(http.ErrAbortHandler)
			}
		case "endless":
			for r.Context().Err() == nil {
				if err := event(f.choice(ask, engines.Chunk{Text: "more "}, false)); err != nil {
					break
				}
			}
			_ = os.WriteFile(os.Getenv("FAKE_FILE"), []byte("told"), 0o600)
			return r.Context().Err()
		case "fails":
			return event(body{"error": body{"message": "EngineDeadError", "code": 500}})
		}
		defer func() { first = false }()
		return event(f.choice(ask, c, first))
	})
	var fault *domain.Error
	if errors.As(err, &fault) && !began {
		f.refuse(w, http.StatusBadRequest, fault.Message)
		return
	}
	_ = event(body{"choices": []body{}, "usage": body{"prompt_tokens": usage.PromptTokens, "completion_tokens": usage.CompletionTokens,
		"prompt_tokens_details": body{"cached_tokens": 1}}})
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// choice is a piece as the dialect words it.
func (f *fake) choice(ask asked, c engines.Chunk, first bool) body {
	one := body{"index": 0, "finish_reason": nil}
	if c.Finish != "" {
		one["finish_reason"] = c.Finish
	}
	if ask.Messages == nil {
		one["text"] = c.Text
	} else {
		one["delta"] = body{"content": c.Text}
		if len(ask.Tools) > 0 && first {
			one["delta"] = body{"reasoning_content": "hm", "tool_calls": []body{{"index": 0, "id": "call-1", "type": "function", "function": body{"name": "f", "arguments": `{"a":`}}}}
		} else if len(ask.Tools) > 0 && c.Finish != "" {
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
	if ask.Logprobs != nil && ask.Logprobs != false && len(c.Tokens) > 0 {
		one["logprobs"] = f.logprobs(ask, c)
	}
	return e
}

func (f *fake) logprobs(ask asked, c engines.Chunk) body {
	if f.dialect == LlamaCpp || ask.Messages != nil {
		told := body{"token": c.Text, "bytes": []byte(c.Text), "logprob": -0.5, "top_logprobs": []body{{"token": c.Text, "logprob": -0.5}}}
		told["bytes"] = numbers(c.Text)
		if f.dialect == LlamaCpp {
			told["id"] = c.Tokens[0]
		}
		return body{"content": []body{told}}
	}
	return body{"tokens": []string{c.Text}, "token_logprobs": []float64{-0.5}, "top_logprobs": []body{{c.Text: -0.5, " or": -1.5}}}
}

func numbers(text string) []int {
	all := []int{}
	for _, b := range []byte(text) {
		all = append(all, int(b))
	}
	return all
}
