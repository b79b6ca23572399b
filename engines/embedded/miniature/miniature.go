// Package miniature writes small models with random weights in the layout of published checkpoints.
// Each family of models has the files, names and notations of its published models. Tests load,
// fine-tune, convert and export these models.
package miniature

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
)

// A family describes the checkpoints of one family of models.
type family struct {
	config                llama.Config
	merges                int
	pattern               string
	pairs                 bool // tokenizer.json has merges as lists of two tokens
	ignoreMerges, compose bool
	specials              []string
	bos, eos              string
	dtype                 safetensors.DType
	shards                int
	template              string
	newNames              bool // config.json has dtype and rope_parameters, as transformers 5 writes it
}

const chatML = "{% for message in messages %}" +
	"{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"

const llama3Template = "{{ bos_token }}{% for message in messages %}" +
	"{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}" +
	"{{ message['content'] | trim + '<|eot_id|>' }}" +
	"{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"

func shape(modelType string) llama.Config {
	return llama.Config{
		ModelType: modelType, HiddenSize: 64, IntermediateSize: 96, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 16,
		MaxPositions: 256, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu", InitializerRange: 0.15,
	}
}

// families has, by the name of a model architecture such as llama, a function that returns the
// description of the architecture.
var families = map[string]func() family{
	"llama": func() family { // files as of SmolLM2
		f := family{
			config: shape("llama"), merges: 80, specials: []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"},
			eos: "<|im_end|>", dtype: safetensors.BF16, shards: 1, template: chatML,
		}
		f.config.TieWordEmbeddings, f.config.RopeTheta = true, 100000
		return f
	},
	"llama3": func() family { // files as of Llama 3.1
		f := family{
			config: shape("llama"), merges: 120, pattern: Llama3Pattern, ignoreMerges: true, bos: "<|begin_of_text|>",
			eos: "<|eot_id|>",
			specials: []string{
				"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
			}, dtype: safetensors.BF16, shards: 3, template: llama3Template,
		}
		f.config.RopeTheta = 500000
		f.config.RopeScaling = &llama.Rotary{
			Type: "llama3", Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalPositions: 64,
		}
		return f
	},
	"qwen2": func() family { // files as of Qwen2.5
		f := family{config: shape("qwen2"), merges: 100, pattern: Qwen2Pattern, compose: true, eos: "<|im_end|>",
			specials: []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, dtype: safetensors.F16, shards: 1,
			template: chatML}
		f.config.TieWordEmbeddings, f.config.RopeTheta, f.config.NormEps = true, 1000000, 1e-6
		off, reach := false, 64
		f.config.UseSlidingWindow, f.config.SlidingWindow = &off, &reach
		return f
	},
	"qwen3": func() family {
		f := family{config: shape("qwen3"), merges: 100, pattern: Qwen2Pattern, pairs: true, compose: true, eos: "<|im_end|>",
			specials: []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>"}, dtype: safetensors.F32, shards: 2,
			template: chatML, newNames: true}
		f.config.HeadDim, f.config.RopeTheta, f.config.NormEps = 24, 1000000, 1e-6
		return f
	},
}

// Families returns the names of the families.
func Families() []string { return slices.Sorted(maps.Keys(families)) }

// Write writes a model of the family name to the directory dir, which must exist.
func Write(dir, name string) error {
	f := families[name]()
	vocabulary := tokenizerFile(f)
	added := vocabulary["added_tokens"].([]any)
	numbers := map[string]int{}
	for _, one := range added {
		token := one.(map[string]any)
		numbers[token["content"].(string)] = token["id"].(int)
	}
	// The vocabulary is padded, as in published models.
	f.config.VocabSize = numbers[f.specials[len(f.specials)-1]] + 5
	config, err := f.configFile(numbers)
	if err != nil {
		return err
	}
	var bos any
	if f.bos != "" {
		bos = f.bos
	}
	for file, content := range map[string]any{
		"config.json": config, "tokenizer.json": vocabulary,
		"tokenizer_config.json": map[string]any{
			"bos_token": bos, "eos_token": f.eos, "chat_template": f.template, "tokenizer_class": "PreTrainedTokenizerFast",
		},
		"generation_config.json": map[string]any{
			"eos_token_id": []int{numbers[f.eos], numbers[f.specials[0]]}, "temperature": 0.7,
		},
	} {
		if err := writeJSON(filepath.Join(dir, file), content); err != nil {
			return err
		}
	}
	return f.writeWeights(dir)
}

// configFile returns the content of config.json. numbers are the IDs of the tokens.
func (f family) configFile(numbers map[string]int) (map[string]any, error) {
	data, err := json.Marshal(f.config)
	if err != nil {
		return nil, err
	}
	var out map[string]any
	if err := json.Unmarshal(data, &out); err != nil {
		return nil, err
	}
	out["eos_token_id"], out["architectures"] = numbers[f.eos], []string{
		map[string]string{
			"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM",
		}[f.config.ModelType],
	}
	dtype := map[safetensors.DType]string{
		safetensors.F32: "float32", safetensors.BF16: "bfloat16", safetensors.F16: "float16",
	}[f.dtype]
	out["torch_dtype"] = dtype
	if f.config.ModelType == "qwen2" {
		delete(out, "head_dim")
		delete(out, "attention_bias")
	}
	if f.newNames {
		delete(out, "torch_dtype")
		delete(out, "rope_theta")
		out["dtype"], out["rope_parameters"] = dtype, map[string]any{"rope_theta": f.config.RopeTheta, "rope_type": "default"}
		out["layer_types"] = slices.Repeat([]string{"full_attention"}, f.config.Layers)
		out["sliding_window"] = nil
	}
	return out, nil
}

// writeWeights writes random weights to dir. Every weight changes the output, so that a test
// detects a missing one.
func (f family) writeWeights(dir string) error {
	w := llama.NewWeights(f.config)
	w.Initialize(uint64(f.merges))
	source := rand.New(rand.NewPCG(7, uint64(f.merges)))
	for i, v := range w.Flat() {
		w.Flat()[i] = v + float32(source.NormFloat64()*0.05)
	}
	all := w.Tensors(f.dtype)
	if f.shards == 1 {
		return safetensors.WriteFile(filepath.Join(dir, "model.safetensors"), all, nil)
	}
	where, size := map[string]string{}, 0
	for shard := range f.shards {
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", shard+1, f.shards)
		part := all[shard*len(all)/f.shards : (shard+1)*len(all)/f.shards]
		for _, tensor := range part {
			where[tensor.Name] = name
			size += 4 * tensor.Count()
		}
		if err := safetensors.WriteFile(filepath.Join(dir, name), part, nil); err != nil {
			return err
		}
	}
	return writeJSON(filepath.Join(dir, "model.safetensors.index.json"), map[string]any{
		"metadata": map[string]any{"total_size": size}, "weight_map": where,
	})
}

func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(data, '\n'), 0o644)
}
