package weights_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/internal/testutil"
)

// files is a directory in memory: content by file name.
type files map[string][]byte

func (f files) directory() weights.Directory {
	sizes := map[string]int64{}
	for name, data := range f {
		sizes[name] = int64(len(data))
	}
	return weights.Directory{Sizes: sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
		data, ok := f[name]
		if !ok {
			return nil, os.ErrNotExist
		}
		if length < 0 {
			length = int64(len(data)) - offset
		}
		return io.NopCloser(io.NewSectionReader(bytes.NewReader(data), offset, length)), nil
	}}
}

func (f files) with(name string, data []byte) files {
	g := maps.Clone(f)
	if g[name] = data; data == nil {
		delete(g, name)
	}
	return g
}

// tensors returns a safetensors file of float32 zeros.
func tensors(shapes map[string][]int) []byte {
	header, at := map[string]any{"__metadata__": map[string]string{"format": "pt"}}, 0
	for _, name := range slices.Sorted(maps.Keys(shapes)) {
		n := 4
		for _, d := range shapes[name] {
			n *= d
		}
		header[name] = map[string]any{"dtype": "F32", "shape": shapes[name], "data_offsets": []int{at, at + n}}
		at += n
	}
	text, _ := json.Marshal(header)
	return raw(string(text), at)
}

func raw(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

const tokens = `{"added_tokens": [{"id": 9}], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}}}`

// shapes returns the shapes of the tensors of a model of the family with one layer, hidden size 8,
// 4 heads of size 2, 2 heads for keys and values, intermediate size 12, and 10 tokens.
func shapes(family string) map[string][]int {
	all := map[string][]int{"model.embed_tokens.weight": {10, 8}, "model.norm.weight": {8}, "lm_head.weight": {10, 8}}
	layer := map[string][]int{"input_layernorm.weight": {8}, "post_attention_layernorm.weight": {8},
		"self_attn.q_proj.weight": {8, 8}, "self_attn.k_proj.weight": {4, 8}, "self_attn.v_proj.weight": {4, 8},
		"self_attn.o_proj.weight": {8, 8},
		"mlp.gate_proj.weight":    {12, 8}, "mlp.up_proj.weight": {12, 8}, "mlp.down_proj.weight": {8, 12}}
	switch family {
	case "qwen2":
		layer["self_attn.q_proj.bias"], layer["self_attn.k_proj.bias"], layer["self_attn.v_proj.bias"] = []int{8}, []int{4},
			[]int{4}
	case "qwen3":
		layer["self_attn.q_norm.weight"], layer["self_attn.k_norm.weight"] = []int{2}, []int{2}
	}
	for name, shape := range layer {
		all["model.layers.0."+name] = shape
	}
	return all
}

func config(family string) []byte {
	return fmt.Appendf(nil, `{"architectures": ["XForCausalLM"], "model_type": %q, "hidden_size": 8,
		"intermediate_size": 12, "num_hidden_layers": 1,
		"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 10, "max_position_embeddings": 64}`, family)
}

func model(family string) files {
	return files{"config.json": config(family), "model.safetensors": tensors(shapes(family)),
		"tokenizer.json": []byte(tokens)}
}

// sharded returns the files of a model of the family with its weights in two files.
func sharded(family string) files {
	all := shapes(family)
	first, second, where := map[string][]int{}, map[string][]int{}, map[string]string{}
	for name, shape := range all {
		if strings.Contains(name, "mlp") {
			second[name], where[name] = shape, "model-00002-of-00002.safetensors"
		} else {
			first[name], where[name] = shape, "model-00001-of-00002.safetensors"
		}
	}
	index, _ := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 1}, "weight_map": where})
	return files{"config.json": config(family), "tokenizer.json": []byte(tokens), "model.safetensors.index.json": index,
		"model-00001-of-00002.safetensors": tensors(first), "model-00002-of-00002.safetensors": tensors(second)}
}

func TestWholeModels(t *testing.T) {
	for _, family := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		count := domain.Count(0)
		for _, shape := range shapes(family) {
			n := 1
			for _, d := range shape {
				n *= d
			}
			count += domain.Count(n)
		}
		for layout, f := range map[string]files{"one file": model(family), "sharded": sharded(family),
			"with others beside": model(family).with("consolidated.safetensors", []byte("?"))} {
			report := mustCheck(t, f.directory())
			require.Empty(t, report.Violations, "%s %s", family, layout)
			require.Equal(t, domain.ModelMetadata{ModelType: family, ParameterCount: count, ContextLength: 64,
				Precision: "FP32"},
				report.ModelMetadata)
		}
	}
}

// onDisk returns a directory of this repository as a weights.Directory.
func onDisk(t *testing.T, dir string) weights.Directory {
	f := files{}
	entries := testutil.ReadDir(t, dir)
	for _, entry := range entries {
		f[entry.Name()] = testutil.ReadFile(t, filepath.Join(dir, entry.Name()))
	}
	return f.directory()
}

func TestTheShippedModel(t *testing.T) {
	report := mustCheck(t, onDisk(t, "../../engines/embedded/base/model"))
	require.Empty(t, report.Violations)
	require.Equal(t, "BF16", report.Precision)
	require.Equal(t, 512, report.ContextLength)
	require.EqualValues(t, 837_248, report.ParameterCount)
}

func TestOtherModels(t *testing.T) {
	odd := files{"config.json": []byte(`{"model_type": "mamba", "architectures": ["MambaModel"]}`),
		"model.safetensors": tensors(map[string][]int{"backbone": {2, 3}}), "vocab.txt": []byte("a")}
	report := mustCheck(t, odd.directory())
	require.Empty(t, report.Violations, "unknown model types are accepted")
	require.Equal(t, domain.ModelMetadata{ModelType: "mamba", ParameterCount: 6, Precision: "FP32", Embedding: true},
		report.ModelMetadata)
	quantized := bytes.Replace(config("llama"), []byte(`{"arch`), []byte(`{"quantization_config": {"bits": 4}, "arch`), 1)
	report = mustCheck(t, model("llama").with("config.json", quantized).with("model.safetensors",
		tensors(map[string][]int{"q_proj.qweight": {2}})).directory())
	require.Empty(t, report.Violations)
}

func TestBrokenModels(t *testing.T) {
	less, wrong := shapes("llama"), shapes("llama")
	delete(less, "model.layers.0.mlp.up_proj.weight")
	wrong["model.layers.0.self_attn.k_proj.weight"] = []int{8, 8}
	whole, shards := model("llama"), sharded("qwen3")
	for name, c := range map[string]struct {
		files files
		want  []string // all expected violations, as "file: description"
	}{
		"no config": {whole.with("config.json", nil), []string{"config.json: is missing"}},
		"config not JSON": {whole.with("config.json", []byte("{nope")),
			[]string{"config.json: cannot be read: the file is not valid JSON at byte 2"}},
		"config of text": {whole.with("config.json", []byte(`{"hidden_size": "8"}`)),
			[]string{"config.json: cannot be read: hidden_size must not be a JSON string"}},
		"config of nothing": {whole.with("config.json", []byte(`{}`)), []string{"config.json: model_type is missing"}},
		"config of nonsense": {whole.with("config.json",
			[]byte(`{"model_type": "llama", "hidden_size": -1, "num_attention_heads": 3, "num_key_value_heads": 2}`)),
			[]string{"config.json: hidden_size is -1, but must be 1 to", "config.json: intermediate_size is 0, but must be",
				"config.json: num_hidden_layers is 0, but must be", "config.json: head_dim", "config.json: vocab_size",
				"config.json: max_position", "config.json: num_key_value_heads, 2, must divide"}},
		"no weights": {whole.with("model.safetensors", nil),
			[]string{"model.safetensors: is missing, and so is model.safetensors.index.json"}},
		"other weights": {whole.with("model.safetensors", nil).with("pytorch_model.bin", []byte("x")),
			[]string{"model.safetensors: is missing: only the format safetensors is supported; convert the weights to it"}},
		"other name": {whole.with("model.safetensors", nil).with("my.safetensors", []byte("x")),
			[]string{"model.safetensors: is missing: rename the weight file"}},
		"weights cut off": {whole.with("model.safetensors", whole["model.safetensors"][:3000]),
			[]string{"it is truncated or damaged"}},
		"a tensor missing": {whole.with("model.safetensors", tensors(less)),
			[]string{`model.safetensors: lacks the tensor "model.layers.0.mlp.up_proj.weight" of shape [12 8]`}},
		"a wrong shape": {whole.with("model.safetensors", tensors(wrong)),
			[]string{`has the tensor "model.layers.0.self_attn.k_proj.weight" with shape [8 8], but config.json implies [4 8]`}},
		"no tokenizer": {whole.with("tokenizer.json", nil),
			[]string{"tokenizer.json: is missing: upload the model's tokenizer too"}},
		"another tokenizer": {whole.with("tokenizer.json", []byte(`{"model": {"vocab": {"a": 10}}}`)),
			[]string{"tokenizer.json: has a token with ID 10, but vocab_size in config.json is 10"}},
		"a tokenizer's list": {whole.with("tokenizer.json",
			[]byte(`{"model": {"vocab": [["a", 1],["b",1],["c",1],["d",1],["e",1],["f",1],["g",1],["h",1],["i",1],["j",`+
				`1],["k",1]]}}`)), []string{"has a token with ID 10"}},
		"no vocabulary": {whole.with("tokenizer.json", []byte(`{"model": {"vocab": 3}}`)),
			[]string{"tokenizer.json: has no vocabulary in the field model.vocab"}},
		"tokenizer config": {whole.with("tokenizer_config.json", []byte(`[]`)),
			[]string{"tokenizer_config.json: cannot be read: the file must not be a JSON array"}},
		"several things": {files{"config.json": []byte("1"), "README.md": []byte("x")},
			[]string{"config.json: cannot be read", "model.safetensors: is missing", "tokenizer.json: is missing"}},
		"a shard missing": {shards.with("model-00002-of-00002.safetensors", nil),
			[]string{"model-00002-of-00002.safetensors: is missing, but model.safetensors.index.json names it"}},
		"shards exchanged": {shards.with("model-00002-of-00002.safetensors",
			shards["model-00001-of-00002.safetensors"]).with("model-00001-of-00002.safetensors", tensors(map[string][]int{})),
			[]string{"has the tensor"}},
		"an empty index": {shards.with("model.safetensors.index.json", []byte(`{}`)),
			[]string{"model.safetensors.index.json: has no weight_map"}},
		"a tensor in no shard": {shards.with("model.safetensors.index.json",
			bytes.Replace(shards["model.safetensors.index.json"], []byte(`"lm_head.weight"`),
				[]byte(`"x.weight":"model-00001-of-00002.safetensors","lm_head.weight"`), 1)),
			[]string{`model-00001-of-00002.safetensors: lacks the tensor "x.weight"`}},
		"an adapter": {files{"adapter_config.json": []byte(`{}`)},
			[]string{"kind: the files are those of an adapter: create the model with kind HF_PEFT_ADDON"}},
	} {
		t.Run(name, func(t *testing.T) {
			report := mustCheck(t, c.files.directory())
			var got []string
			for _, v := range report.Violations {
				got = append(got, v.Field+": "+v.Description)
			}
			text := strings.Join(got, "\n")
			for _, want := range c.want {
				require.Contains(t, text, want)
			}
			if name != "shards exchanged" {
				require.Len(t, got, len(c.want), text)
			}
		})
	}
}

func TestViolationsAreBounded(t *testing.T) {
	many := bytes.Replace(config("llama"), []byte(`"num_hidden_layers": 1`), []byte(`"num_hidden_layers": 1000`), 1)
	report := mustCheck(t, model("llama").with("config.json", many).directory())
	require.Len(t, report.Violations, weights.MaxViolations)
	require.Equal(t, "and 8892 more violations", report.Violations[weights.MaxViolations-1].Description)
}

func TestBrokenHeaders(t *testing.T) {
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"short":       {[]byte("abc"), "at least 8"},
		"long header": {append(binary.LittleEndian.AppendUint64(nil, 1<<62), 1, 2), "claims"},
		"no JSON":     {raw("{nope", 0), "not valid JSON"},
		"a list":      {raw("[]", 0), "not a JSON object"},
		"no end":      {raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}`, 4), "not valid JSON"},
		"metadata":    {raw(`{"__metadata__":3}`, 0), "__metadata__"},
		"twice": {raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"d`+
			`ata_offsets":[0,4]}}`, 4), "twice"},
		"no place": {raw(`{"a":{"dtype":"F32","shape":[1]}}`, 4), "lacks dtype, shape or data_offsets"},
		"type":     {raw(`{"a":{"dtype":"F5","shape":[1],"data_offsets":[0,4]}}`, 4), `"F5", which is not a number type`},
		"shape":    {raw(`{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,4]}}`, 4), "invalid shape"},
		"axes": {raw(`{"a":{"dtype":"F32","shape":[1`+strings.Repeat(",1", 99_999)+`],"data_offsets":[0,4]}}`, 4),
			"100000 dimensions, but at most 16 are allowed"},
		"overflow": {raw(`{"a":{"dtype":"F32","shape":[4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}`, 0),
			"invalid shape"},
		"offsets": {raw(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}}`, 4), "takes 8 bytes"},
		"gap": {raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 8),
			"at byte 4 after the header, but the previous tensor ends at byte 0"},
		"surplus": {raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 5), "truncated or damaged"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := files{"x": c.data}.directory().ReadHeader("x")
			require.True(t, weights.IsInvalid(err), "%v", err)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// TestReadErrorsAreNoViolations checks that Check returns an error when a file cannot be read, so
// that the caller can retry, and does not report a violation.
func TestReadErrorsAreNoViolations(t *testing.T) {
	readErr := errors.New("the connection was closed")
	f := model("llama").directory()
	for _, broken := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		g := f
		g.Open = func(name string, offset, length int64) (io.ReadCloser, error) {
			if name == broken {
				return io.NopCloser(io.MultiReader(strings.NewReader("\x20\x00\x00\x00\x00\x00\x00\x00{"), failing{readErr})), nil
			}
			return f.Open(name, offset, length)
		}
		_, err := weights.Check(g)
		require.ErrorIs(t, err, readErr, broken)
	}
}

type failing struct{ err error }

func (f failing) Read([]byte) (int, error) { return 0, f.err }

func TestAdapters(t *testing.T) {
	base, err := model("llama").directory().ReadConfig()
	require.NoError(t, err)
	facts := domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000, ContextLength: 64, Precision: "BF16"}
	pair := func(out, rank, in int) map[string][]int {
		return map[string][]int{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight": {rank, in},
			"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight": {out, rank}}
	}
	settings := []byte(`{"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}`)
	good := files{"adapter_config.json": settings, "adapter_model.safetensors": tensors(pair(8, 4, 8))}
	report, err := weights.CheckAdapter(good.directory(), base, facts)
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.Equal(t, domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000, ContextLength: 64, Precision: "FP32",
		LoraRank: 4, LoraTargets: []string{"q_proj"}}, report.ModelMetadata)
	alone := func(half string) files {
		p := pair(8, 4, 8)
		delete(p, "base_model.model.model.layers.0.self_attn.q_proj."+half+".weight")
		return good.with("adapter_model.safetensors", tensors(p))
	}
	elsewhere := map[string][]int{"base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight": {4, 8},
		"base_model.model.model.layers.0.self_attn.x_proj.lora_A.weight": {4, 8}}
	for name, c := range map[string]struct {
		files files
		want  []string
	}{
		"no settings": {good.with("adapter_config.json", nil), []string{"adapter_config.json: is missing"}},
		"bad settings": {good.with("adapter_config.json", []byte(`{"peft_type": "X"}`)),
			[]string{"peft_type is \"X\", but must be LORA", "r is 0, but must be 1 to 1024",
				"lora_alpha is 0, but must be above 0", "target_modules is missing"}},
		"no weights": {good.with("adapter_model.safetensors", nil).with("adapter_model.bin", []byte("x")),
			[]string{"convert adapter_model.bin"}},
		"empty weights": {good.with("adapter_model.safetensors", tensors(nil)), []string{"has no tensors"}},
		"another width": {good.with("adapter_model.safetensors", tensors(pair(8, 4, 16))),
			[]string{"with shape [4 16], but the base model requires [r 8]"}},
		"another height": {good.with("adapter_model.safetensors", tensors(pair(16, 4, 8))),
			[]string{"with shape [16 4], but the base model and lora_A require [8 r]"}},
		"only A": {alone("lora_B"), []string{"has lora_A of 0.self_attn.q_proj but not lora_B"}},
		"only B": {alone("lora_A"), []string{"has lora_B of 0.self_attn.q_proj but not lora_A"}},
		"elsewhere": {good.with("adapter_model.safetensors", tensors(elsewhere)),
			[]string{"for a layer that the base model, with 1 layers", "for a projection that the base model does not have"}},
		"a whole model": {model("llama"), []string{"create the model with kind HF_BASE_MODEL"}},
	} {
		t.Run(name, func(t *testing.T) {
			report, err := weights.CheckAdapter(c.files.directory(), base, facts)
			require.NoError(t, err)
			require.Len(t, report.Violations, len(c.want), "%v", report.Violations)
			text := report.Violations.Err().Error()
			for _, want := range c.want {
				require.Contains(t, text, want)
			}
		})
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(model("llama")["model.safetensors"])
	f.Add(raw(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`, 4))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := files{"x": data}.directory()
		h, err := dir.ReadHeader("x")
		if err != nil {
			require.True(t, weights.IsInvalid(err), "%v", err)
			return
		}
		at := int64(0)
		for _, tensor := range h.Tensors {
			require.Equal(t, at, tensor.Begin)
			at = tensor.End
		}
		require.Equal(t, int64(len(data)), h.Start+at)
		for _, dtype := range weights.DTypes {
			if _, err := dir.Convert(io.Discard, "x", dtype); err != nil {
				require.True(t, weights.IsInvalid(err), "%v", err)
			}
		}
	})
}

func mustCheck(t testing.TB, d weights.Directory) weights.Report {
	t.Helper()
	report, err := weights.Check(d)
	require.NoError(t, err)
	return report
}
