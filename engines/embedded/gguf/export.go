package gguf

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
)

// architectures are llama.cpp's names of the model families.
var architectures = map[string]string{"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

// Export writes the model of a Hugging Face directory, with matrices stored as a type and
// vectors as float32. The error is FailedPrecondition for a model that the format does not
// support.
func Export(out io.Writer, dir, name string, as Type) (err error) {
	if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); err == nil {
		return domain.Errorf(domain.FailedPrecondition,
			"the files are an adapter: export a full model, such as its base model")
	}
	c, err := llama.ReadConfig(dir)
	if err != nil {
		return err
	}
	if kind := c.Scaling().Kind(); kind == llama.Llama3Rope && architectures[c.ModelType] != "llama" {
		return domain.Errorf(domain.FailedPrecondition,
			"config.json: rope_scaling %s is not supported by the GGUF format for %s models", kind, c.ModelType)
	}
	tokens, err := tokenizer.Load(dir)
	if err != nil {
		return err
	}
	words, err := vocabulary(dir, &c, tokens)
	if err != nil {
		return err
	}
	files, err := safetensors.OpenDir(dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	l := layout{config: &c, files: files, as: as}
	return write(out, append(settings(&c, name, as), words...), l.tensors())
}

// settings is the metadata of the architecture.
func settings(c *llama.Config, name string, as Type) []value {
	arch := architectures[c.ModelType]
	number := func(key string, n int) value { return value{arch + "." + key, uint32(n)} }
	out := []value{
		{"general.architecture", arch}, {"general.name", name}, {"general.file_type", as.file()},
		number("context_length", c.MaxPositions), number("embedding_length", c.HiddenSize), number("block_count", c.Layers),
		number("feed_forward_length", c.IntermediateSize), number("attention.head_count", c.Heads),
		number("attention.head_count_kv", c.KVHeads),
		number("attention.key_length", c.HeadDim), number("attention.value_length", c.HeadDim),
		number("rope.dimension_count", c.HeadDim),
		number("vocab_size", c.VocabSize),
		{arch + ".attention.layer_norm_rms_epsilon", float32(c.NormEps)}, {arch + ".rope.freq_base", float32(c.RopeTheta)},
	}
	if r := c.Scaling(); r.Kind() == llama.LinearRope {
		out = append(out, value{arch + ".rope.scaling.type", "linear"},
			value{arch + ".rope.scaling.factor", float32(r.Factor)})
	}
	return out
}

// Token types of the format.
const (
	normalToken  = 1
	controlToken = 3
	userToken    = 4
	unusedToken  = 5
)

// vocabulary is the metadata of the tokenizer. Token IDs that the tokenizer lacks get unique
// names.
func vocabulary(dir string, c *llama.Config, t *tokenizer.Tokenizer) ([]value, error) {
	list, err := t.Listing()
	if err != nil {
		return nil, err
	}
	if len(list.Tokens) > c.VocabSize {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"tokenizer.json has %d tokens and config.json a vocabulary of %d: they belong to different models", len(list.Tokens),
			c.VocabSize)
	}
	spellings, types := make([]string, c.VocabSize), make([]int32, c.VocabSize)
	for id := range spellings {
		spellings[id], types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		if id >= len(list.Tokens) || list.Tokens[id].Spelling == "" {
			continue
		}
		one := list.Tokens[id]
		switch spellings[id], types[id] = one.Spelling, normalToken; {
		case one.Special:
			types[id] = controlToken
		case one.Added:
			types[id] = userToken
		}
	}
	out := []value{
		{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", list.Pattern}, {"tokenizer.ggml.tokens", spellings},
		{"tokenizer.ggml.token_type", types}, {"tokenizer.ggml.merges", list.Merges},
		{"tokenizer.ggml.add_bos_token", t.BOS() >= 0},
	}
	if t.BOS() >= 0 {
		out = append(out, value{"tokenizer.ggml.bos_token_id", uint32(t.BOS())})
	}
	end := t.EOS()
	if end < 0 && len(c.EOS) > 0 {
		end = c.EOS[0]
	}
	if end >= 0 {
		out = append(out, value{"tokenizer.ggml.eos_token_id", uint32(end)})
	}
	template, err := chatTemplate(dir)
	if template != "" {
		out = append(out, value{"tokenizer.chat_template", template})
	}
	return out, err
}

// chatTemplate is the model's chat template, "" if it has none or several.
func chatTemplate(dir string) (string, error) {
	own, err := os.ReadFile(filepath.Join(dir, "chat_template.jinja"))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return string(own), err
	}
	data, err := os.ReadFile(filepath.Join(dir, "tokenizer_config.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var c struct {
		Template any `json:"chat_template"`
	}
	err = json.Unmarshal(data, &c)
	text, _ := c.Template.(string)
	return strings.TrimSpace(text), err
}
