package external

import (
	"cmp"
	"context"
	"fmt"
	"net/http"

	"anneal/domain"
	"anneal/engines"
)

// A preset describes a kind of server: its command line and its completion API.
type preset struct {
	longPrompts []string // options for more prompt tokens per step: see engines.ModelFiles.LongPrompts
	// drafts returns the options for speculative decoding; nil for a server without draft models.
	drafts func(arguments) []string
	// shares returns the options for a share of a device; nil without such options.
	shares    func(fraction string) []string
	command   string // default command line, see template
	install   string // how to install the program, for errors
	health    string // URL path that returns the status 200 when the server is ready
	keyEnv    string // environment variable with the API key
	env       []string
	prefixes  []string // prefixes of the environment variables that the server inherits from this process
	readsGGUF bool     // the server reads GGUF files instead of Hugging Face directories

	adapter     func(file string) []string // returns the options that load a LoRA adapter
	adapterName string                     // name in the API of the model with its adapter; "" stands for baseName
	hotAddons   bool                       // the server loads adapters while it serves requests

	describe func(context.Context, *server) (engines.ModelInfo, error)
	// vision asks the server whether and how the loaded model reads images; nil for a server that
	// returns errors for images that its model cannot read.
	vision           func(context.Context, *server, *preset) error
	imageCompletions string // URL path for prompts with images; "" if the server reads images only in chats
	noImages         string // why the loaded model reads no images, see ImagesError; "" if it may read them
	mediaMarker      string // text that stands for an image in prompts, for llama.cpp's server
	// extend adds fields to a body that OpenAI's API lacks. It reports the fields of the request
	// that the server does not support as violations.
	extend func(b body, contextLength int, req *engines.CompletionRequest, v *domain.Violations)
	// truncates reports that the server ends a completion at the context length. Other servers
	// reject a max_tokens that exceeds it.
	truncates   bool
	noReasoning bool // the chat template of the loaded model does not support reasoning
	tokenIDs    bool // streams contain the token IDs of the prompt and the completion
	// cacheField is the field of a request that enables the prefix cache, for servers that share
	// the cache among all requests; "" for servers that isolate cache scopes.
	cacheField string
	tokenize   func(model string, req *engines.CompletionRequest) (path string, b body)
	detokenize func(tokens []int) (path string, b body)
}

// devices are the prefixes of the environment variables that accelerator libraries read.
var devices = []string{"CUDA_", "NVIDIA_", "NCCL_", "ROCR_", "HIP_", "XDG_CACHE_", "OMP_"}

var presets = map[string]preset{
	VLLM: {
		command: "vllm serve {dir} --host 127.0.0.1 --port {port} --served-model-name {name} --tensor-parallel-size " +
			"{devices} --enable-prompt-tokens-details " +
			"--enable-lora --max-loras 8 --max-cpu-loras 130 --max-lora-rank 64 {adapter}",
		install:     "install it with `pip install vllm` on a machine with GPUs",
		longPrompts: []string{"--enable-chunked-prefill", "--max-num-batched-tokens", "16384"},
		drafts:      draftsOfVLLM,
		shares:      func(fraction string) []string { return []string{memoryOption, fraction} },
		health:      "/health", keyEnv: "VLLM_API_KEY",
		env:      []string{"VLLM_ALLOW_RUNTIME_LORA_UPDATING=True", "VLLM_NO_USAGE_STATS=1"},
		prefixes: append([]string{"VLLM_", "HF_HOME", "TORCH_", "TRITON_"}, devices...),
		adapter: func(dir string) []string {
			return []string{"--lora-modules", adapterName + "=" + dir}
		},
		adapterName: adapterName, hotAddons: true,
		describe: describeVLLM, extend: extendVLLM, tokenIDs: true,
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
		detokenize: func(tokens []int) (string, body) {
			return "/detokenize", body{"model": baseName, "tokens": tokens}
		},
	},
	LlamaCpp: {
		command: "llama-server -m {gguf} --host 127.0.0.1 --port {port} --alias {name} --jinja --no-webui {adapter} " +
			"{embeddings} {projector}",
		install:     "build llama.cpp, or install its package, so that llama-server is in PATH",
		longPrompts: []string{"--batch-size", "4096", "--ubatch-size", "1024"},
		drafts:      draftsOfLlama,
		health:      "/health", keyEnv: "LLAMA_API_KEY", readsGGUF: true, truncates: true,
		prefixes: append([]string{"LLAMA_ARG_", "GGML_"}, devices...),
		adapter:  func(file string) []string { return []string{"--lora", file} },
		describe: describeLlama, extend: extendLlama, cacheField: "cache_prompt",
		vision: visionOfLlama, imageCompletions: "/completion",
		tokenize: func(_ string, req *engines.CompletionRequest) (string, body) {
			return "/tokenize", body{"content": req.Prompt, "add_special": true, "parse_special": true}
		},
		detokenize: func(tokens []int) (string, body) { return "/detokenize", body{"tokens": tokens} },
	},
	OpenAI: {
		install: "install it, or change --engine-command",
		health:  "/v1/models", keyEnv: "OPENAI_API_KEY", truncates: true, prefixes: devices,
		adapter:  func(dir string) []string { return []string{dir} },
		describe: describeOpenAI, extend: extendOpenAI,
	},
}

// adapterName is the name of the adapter with which a server is started, if the server's API has
// the adapter under its own name.
const adapterName = "tuned"

// unknownContextLength is reported for a server that does not report its context length. The server
// itself rejects longer requests.
const unknownContextLength = 4096

func describeVLLM(ctx context.Context, s *server) (info engines.ModelInfo, err error) {
	var models struct {
		Data []struct {
			ID            string `json:"id"`
			ContextLength int    `json:"max_model_len"`
		} `json:"data"`
	}
	if err := s.call(ctx, http.MethodGet, "/v1/models", nil, &models); err != nil {
		return info, fmt.Errorf("cannot read the model's properties from the model server: %w", err)
	}
	for _, one := range models.Data {
		if one.ID == baseName {
			info.ContextLength = one.ContextLength
		}
	}
	if info.ContextLength < 1 {
		return info, domain.Errorf(domain.FailedPrecondition,
			"the model server reports no max_model_len for a model %q: its command line must pass {name} as the model's name",
			baseName)
	}
	info.Slots = 256 // default of --max-num-seqs, which vLLM does not report
	return info, nil
}

func describeLlama(ctx context.Context, s *server) (info engines.ModelInfo, err error) {
	var props struct {
		Slots    int `json:"total_slots"`
		Settings struct {
			ContextLength int `json:"n_ctx"`
		} `json:"default_generation_settings"`
	}
	var models struct {
		Data []struct {
			Meta struct {
				Parameters int64 `json:"n_params"`
			} `json:"meta"`
		} `json:"data"`
	}
	err = s.call(ctx, http.MethodGet, "/props", nil, &props)
	if err == nil {
		err = s.call(ctx, http.MethodGet, "/v1/models", nil, &models)
	}
	if err != nil {
		return info, fmt.Errorf("cannot read the model's properties from the model server: %w", err)
	}
	info.ContextLength, info.Slots = props.Settings.ContextLength, max(1, props.Slots)
	if len(models.Data) > 0 {
		info.ParameterCount = models.Data[0].Meta.Parameters
	}
	return info, nil
}

// visionOfLlama implements preset.vision. Versions of llama.cpp's server that report no modalities
// read no images.
func visionOfLlama(ctx context.Context, s *server, p *preset) error {
	var props struct {
		Modalities struct {
			Vision bool `json:"vision"`
		} `json:"modalities"`
		Marker string `json:"media_marker"`
	}
	if err := s.call(ctx, http.MethodGet, "/props", nil, &props); err != nil {
		return fmt.Errorf("cannot read the model's properties from the model server: %w", err)
	}
	p.mediaMarker = cmp.Or(props.Marker, defaultMarker)
	switch {
	case props.Modalities.Vision:
	case s.args.projector == "":
		p.noImages = "is an image, which llama.cpp's server reads only with a multimodal projector: add the model's " +
			"mmproj file to its files, and deploy it again"
	default:
		p.noImages = "is an image, which the model server cannot read although the model has an mmproj file: " +
			"its command line must have {projector}, and its version must support the projector"
	}
	return nil
}

func describeOpenAI(context.Context, *server) (engines.ModelInfo, error) {
	return engines.ModelInfo{ContextLength: unknownContextLength, Slots: 8}, nil
}
