package external

import (
	"context"
	"fmt"
	"net/http"

	"anneal/domain"
	"anneal/engines"
)

// A preset is how one kind of server is started and asked.
type preset struct {
	command   string // its template
	install   string // what to do when it is not there
	health    string // path that answers 200 once it can be asked
	keyEnv    string // variable that it takes its API key from
	env       []string
	prefixes  []string // of variables that it gets from this process
	readsGGUF bool

	adapter     func(file string) []string // words that give it a LoRA adapter at its start
	adapterName string                     // what a model with an adapter is called; "" is baseName
	hotAddons   bool                       // it takes adapters while it answers

	describe func(context.Context, *server) (engines.ModelInfo, error)
	// extend adds to a body of OpenAI's fields those that only this kind has,
	// and refuses what it has not.
	extend func(b body, window int, req *engines.CompletionRequest, v *domain.Violations)
	// fits tells whether an answer ends by itself where the window does.
	fits     bool
	names    bool   // its streams tell the numbers of tokens, the prompt's too
	reuse    string // field that lets it reuse what it read for other requests, where it keeps no scopes apart
	tokenize func(model string, req *engines.CompletionRequest) (path string, b body)
	untoken  func(tokens []int) (path string, b body)
}

// devices are the variables that accelerators' libraries look at.
var devices = []string{"CUDA_", "NVIDIA_", "NCCL_", "ROCR_", "HIP_", "XDG_CACHE_", "OMP_"}

var presets = map[string]preset{
	VLLM: {
		command: "vllm serve {dir} --host 127.0.0.1 --port {port} --served-model-name {name} --tensor-parallel-size {devices} --enable-prompt-tokens-details " +
			"--enable-lora --max-loras 8 --max-cpu-loras 130 --max-lora-rank 64 {adapter}",
		install: "`pip install vllm` installs it on a machine with GPUs",
		health:  "/health", keyEnv: "VLLM_API_KEY",
		env:      []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "VLLM_NO_USAGE_STATS=1"},
		prefixes: append([]string{"VLLM_", "HF_HOME", "TORCH_", "TRITON_"}, devices...),
		adapter: func(dir string) []string {
			return []string{"--lora-modules", adapterName + "=" + dir}
		},
		adapterName: adapterName, hotAddons: true,
		describe: describeVLLM, extend: extendVLLM, names: true,
		tokenize: func(model string, req *engines.CompletionRequest) (string, body) {
			b := body{"model": model}
			if req.Chat != nil {
				b["messages"], b["add_generation_prompt"] = messages(req), true
				if len(req.Chat.Tools) > 0 {
					b["tools"] = req.Chat.Tools
				}
			} else {
				b["prompt"] = req.Prompt
			}
			return "/tokenize", b
		},
		untoken: func(tokens []int) (string, body) { return "/detokenize", body{"model": baseName, "tokens": tokens} },
	},
	LlamaCpp: {
		command: "llama-server -m {gguf} --host 127.0.0.1 --port {port} --alias {name} --jinja --no-webui {adapter}",
		install: "build llama.cpp, or install its package, so that llama-server is in PATH",
		health:  "/health", keyEnv: "LLAMA_API_KEY", readsGGUF: true, fits: true,
		prefixes: append([]string{"LLAMA_ARG_", "GGML_"}, devices...),
		adapter:  func(file string) []string { return []string{"--lora", file} },
		describe: describeLlama, extend: extendLlama, reuse: "cache_prompt",
		tokenize: func(_ string, req *engines.CompletionRequest) (string, body) {
			return "/tokenize", body{"content": req.Prompt, "add_special": true, "parse_special": true}
		},
		untoken: func(tokens []int) (string, body) { return "/detokenize", body{"tokens": tokens} },
	},
	OpenAI: {
		install: "install it, or name another in --engine-command",
		health:  "/v1/models", keyEnv: "OPENAI_API_KEY", fits: true, prefixes: devices,
		adapter:  func(dir string) []string { return []string{dir} },
		describe: describeOpenAI, extend: extendOpenAI,
	},
}

// adapterName is what a server calls the model with the adapter that it is
// started with, where the two have names of their own.
const adapterName = "tuned"

// unknownWindow is told of a server that does not say its own: requests are
// then refused by the server.
const unknownWindow = 4096

func describeVLLM(ctx context.Context, s *server) (info engines.ModelInfo, err error) {
	var models struct {
		Data []struct {
			ID     string `json:"id"`
			Window int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := s.ask(ctx, http.MethodGet, "/v1/models", nil, &models); err != nil {
		return info, fmt.Errorf("the server does not describe its model: %w", err)
	}
	for _, one := range models.Data {
		if one.ID == baseName {
			info.ContextLength = one.Window
		}
	}
	if info.ContextLength < 1 {
		return info, domain.Errorf(domain.FailedPrecondition, "the server of the node's engine does not serve a model %q with a window: its command line must pass {name} as the model's name", baseName)
	}
	info.Slots = 256 // vLLM's own default of --max-num-seqs, which it does not tell
	return info, nil
}

func describeLlama(ctx context.Context, s *server) (info engines.ModelInfo, err error) {
	var props struct {
		Slots    int `json:"total_slots"`
		Settings struct {
			Window int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	var models struct {
		Data []struct {
			Meta struct {
				Parameters int64 `json:"n_params"`
			} `json:"meta"`
		} `json:"data"`
	}
	err = s.ask(ctx, http.MethodGet, "/props", nil, &props)
	if err == nil {
		err = s.ask(ctx, http.MethodGet, "/v1/models", nil, &models)
	}
	if err != nil {
		return info, fmt.Errorf("the server does not describe its model: %w", err)
	}
	info.ContextLength, info.Slots = props.Settings.Window, max(1, props.Slots)
	if len(models.Data) > 0 {
		info.ParameterCount = models.Data[0].Meta.Parameters
	}
	return info, nil
}

func describeOpenAI(context.Context, *server) (engines.ModelInfo, error) {
	return engines.ModelInfo{ContextLength: unknownWindow, Slots: 8}, nil
}
