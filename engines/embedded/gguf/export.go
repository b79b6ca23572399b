package gguf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/quant"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
)

// architectures are llama.cpp's names of model families, by model_type.
var architectures = map[string]string{"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

// Options configure an export.
type Options struct {
	Name    string         // value of the metadata key general.name
	Type    FileType       // determines the types of the matrices
	Adapter *llama.Adapter // adapter to merge into the model; nil for none
	// Template is a chat template to write instead of the model's; "" writes the model's.
	Template string
	Workers  int // maximum number of cores; 0 uses all
	// Progress is called after each tensor, with its size and the size of all tensors in bytes; nil
	// reports nothing.
	Progress func(tensor string, bytes, total int64)
}

// A Replaced describes matrices that are stored in another type than the file type prescribes,
// because their row length is not a multiple of the type's block.
type Replaced struct {
	Wanted, Stored quant.Type
	Columns        int // length of the matrices' rows
	Matrices       int
}

// String describes the replaced matrices in one sentence, without a period.
func (r Replaced) String() string {
	return fmt.Sprintf(
		"%d matrices with rows of %d values, which is not a multiple of %d, are stored as %s instead of %s",
		r.Matrices, r.Columns, r.Wanted.Block(), r.Stored, r.Wanted)
}

// addReplaced adds the matrices in r to the list all, and returns the list: it increases the count
// of the entry with the same types and row length, or appends r if there is none.
func addReplaced(all []Replaced, r Replaced) []Replaced {
	for i := range all {
		same := all[i]
		if same.Matrices = r.Matrices; same == r {
			all[i].Matrices += r.Matrices
			return all
		}
	}
	return append(all, r)
}

// Export writes the model in the Hugging Face directory dir to out in GGUF. It returns the matrices
// whose type differs from the one that the file type prescribes. It returns FailedPrecondition if
// GGUF does not support the model, or if a value exceeds the range of its type.
func Export(ctx context.Context, out io.Writer, dir string, o Options) (replaced []Replaced, err error) {
	if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); err == nil {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the files are an adapter: export a full model, such as its base model")
	}
	c, err := readConfig(dir)
	if err != nil {
		return nil, err
	}
	tokens, err := tokenizer.Load(dir)
	if err != nil {
		return nil, err
	}
	words, err := vocabulary(dir, &c, tokens, o.Template)
	if err != nil {
		return nil, err
	}
	files, err := safetensors.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	l := layout{config: &c, files: files, as: o.Type, adapter: o.Adapter, workers: o.workers()}
	tensors := l.tensors()
	return l.replaced, write(ctx, out, append(settings(&c, o), words...), tensors, o)
}

func (o Options) workers() int { return cmp.Or(o.Workers, runtime.GOMAXPROCS(0)) }

// readConfig reads config.json, and returns an error if GGUF does not support the model.
func readConfig(dir string) (llama.Config, error) {
	c, err := llama.ReadConfig(dir)
	if err != nil {
		return c, err
	}
	if kind := c.Scaling().Kind(); kind == llama.Llama3Rope && architectures[c.ModelType] != "llama" {
		return c, domain.Errorf(domain.FailedPrecondition,
			"config.json: rope_scaling %s is not supported by the GGUF format for %s models", kind, c.ModelType)
	}
	return c, nil
}

// quantizationVersion is the version of ggml's block layouts, GGML_QNT_VERSION.
const quantizationVersion = 2

// settings returns the metadata that describes the architecture.
func settings(c *llama.Config, o Options) []value {
	arch := architectures[c.ModelType]
	number := func(key string, n int) value { return value{arch + "." + key, uint32(n)} }
	out := []value{
		{"general.architecture", arch}, {"general.name", o.Name},
		{"general.file_type", uint32(o.Type)},
		number("context_length", c.MaxPositions), number("embedding_length", c.HiddenSize), number("block_count", c.Layers),
		number("feed_forward_length", c.IntermediateSize), number("attention.head_count", c.Heads),
		number("attention.head_count_kv", c.KVHeads),
		number("attention.key_length", c.HeadDim), number("attention.value_length", c.HeadDim),
		number("rope.dimension_count", c.HeadDim),
		number("vocab_size", c.VocabSize),
		{arch + ".attention.layer_norm_rms_epsilon", float32(c.NormEps)}, {arch + ".rope.freq_base", float32(c.RopeTheta)},
	}
	if o.Type.matrix().Block() > 1 {
		out = append(out, value{"general.quantization_version", uint32(quantizationVersion)})
	}
	if r := c.Scaling(); r.Kind() == llama.LinearRope {
		out = append(out, value{arch + ".rope.scaling.type", "linear"},
			value{arch + ".rope.scaling.factor", float32(r.Factor)})
	}
	return out
}

// Token types of GGUF.
const (
	normalToken  = 1
	controlToken = 3
	userToken    = 4
	unusedToken  = 5
)

// vocabulary returns the metadata that describes the tokenizer t. Token IDs that t does not define
// get unique invented names. template is the chat template; "" stands for the model's.
func vocabulary(dir string, c *llama.Config, t *tokenizer.Tokenizer, template string) ([]value, error) {
	list, err := t.Listing()
	if err != nil {
		return nil, err
	}
	if len(list.Tokens) > c.VocabSize {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"tokenizer.json has %d tokens and config.json a vocabulary of %d: they belong to different models", len(list.Tokens),
			c.VocabSize)
	}
	texts, types := make([]string, c.VocabSize), make([]int32, c.VocabSize)
	for id := range texts {
		texts[id], types[id] = fmt.Sprintf("[PAD%d]", id), unusedToken
		if id >= len(list.Tokens) || list.Tokens[id].Text == "" {
			continue
		}
		one := list.Tokens[id]
		switch texts[id], types[id] = one.Text, normalToken; {
		case one.Special:
			types[id] = controlToken
		case one.Added:
			types[id] = userToken
		}
	}
	out := []value{
		{"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", list.Pattern}, {"tokenizer.ggml.tokens", texts},
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
	if template == "" {
		template, err = chatTemplate(dir)
	}
	if template != "" {
		out = append(out, value{"tokenizer.chat_template", template})
	}
	return out, err
}

// chatTemplate returns the model's chat template; "" if the model has none, or several.
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
