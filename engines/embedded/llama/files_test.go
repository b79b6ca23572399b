package llama

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines/embedded/safetensors"
	"anneal/internal/testutil"
)

func TestSaveAndLoad(t *testing.T) {
	for i, family := range []string{"llama", "mistral", "qwen2", "qwen3"} {
		for _, dtype := range []string{"float32", "bfloat16", "float16"} {
			c := tiny(i%2 == 0)
			c.ModelType, c.TorchDType, c.AttentionBias = family, dtype, family == "llama"
			w := NewWeights(c)
			w.Initialize(3)
			randomize(w.Flat(), 4, 0.05)
			for i, v := range w.Flat() {
				switch dtype {
				case "bfloat16":
					w.Flat()[i] = safetensors.RoundBF16(v)
				case "float16":
					w.Flat()[i] = weights.FromHalf(weights.ToHalf(v))
				}
			}
			dir := t.TempDir()
			require.NoError(t, w.Save(dir))
			back, err := Load(dir)
			require.NoError(t, err)
			require.Equal(t, w.Flat(), back.Flat())
			require.Equal(t, w.Hash(), back.Hash())
			back.Norm[0]++
			require.NotEqual(t, w.Hash(), back.Hash())
		}
	}
}

// TestLoadShards checks that a sharded model equals the same model in one file.
func TestLoadShards(t *testing.T) {
	w := NewWeights(tiny(false))
	w.Initialize(4)
	dir := t.TempDir()
	require.NoError(t, w.Save(dir))
	require.NoError(t, os.Remove(filepath.Join(dir, weightsFile)))
	parts, where := [2][]safetensors.Tensor{}, map[string]string{}
	names := [2]string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"}
	for i, tensor := range w.Tensors(safetensors.F32) {
		parts[i%2] = append(parts[i%2], tensor)
		where[tensor.Name] = names[i%2]
	}
	for i, name := range names {
		require.NoError(t, safetensors.WriteFile(filepath.Join(dir, name), parts[i], nil))
	}
	index := filepath.Join(dir, weightsFile+".index.json")
	require.NoError(t, writeJSON(index, map[string]any{"weight_map": where}))
	back, err := Load(dir)
	require.NoError(t, err)
	require.Equal(t, w.Hash(), back.Hash())

	where["model.norm.weight"] = "../" + names[0]
	require.NoError(t, writeJSON(index, map[string]any{"weight_map": where}))
	_, err = Load(dir)
	require.ErrorContains(t, err, "has an invalid file name")
	delete(where, "model.norm.weight")
	require.NoError(t, writeJSON(index, map[string]any{"weight_map": where}))
	_, err = Load(dir)
	require.ErrorContains(t, err, "tensor model.norm.weight is missing")
	require.NoError(t, os.Remove(filepath.Join(dir, names[1])))
	_, err = Load(dir)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestInvalidDirectories(t *testing.T) {
	cases := map[string]func(t *testing.T, dir string){
		"config.json is missing": func(t *testing.T,
			dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, "config.json")))
		},
		"model_type": func(t *testing.T,
			dir string) {
			edit(t, dir, `"model_type": "llama"`, `"model_type": "mamba"`)
		},
		"rope_scaling.low_freq_factor": func(t *testing.T, dir string) {
			edit(t, dir, `"rope_theta"`, `"rope_scaling": {"rope_type": "llama3", "factor": 8}, "rope_theta"`)
		},
		"rope_scaling.factor": func(t *testing.T, dir string) {
			edit(t, dir, `"rope_theta"`, `"rope_scaling": {"type": "linear"}, "rope_theta"`)
		},
		`rope_parameters.rope_type: must be linear, llama3 or default, is "yarn"`: func(t *testing.T, dir string) {
			edit(t, dir, `"rope_theta"`, `"rope_parameters": {"rope_type": "yarn"}, "rope_theta"`)
		},
		"partial_rotary_factor": func(t *testing.T, dir string) {
			edit(t, dir, `"rope_theta"`, `"partial_rotary_factor": 0.5, "rope_theta"`)
		},
		"q_proj.bias is missing": func(t *testing.T,
			dir string) {
			edit(t, dir, `"attention_bias": false`, `"attention_bias": true`)
		},
		"q_norm.weight is missing": func(t *testing.T,
			dir string) {
			edit(t, dir, `"model_type": "llama"`, `"model_type": "qwen3"`)
		},
		"do not match": func(t *testing.T, dir string) { edit(t, dir, `"vocab_size": 37`, `"vocab_size": 38`) },
		"gate_proj": func(t *testing.T,
			dir string) {
			edit(t, dir, `"intermediate_size": 40`, `"intermediate_size": 41`)
		},
	}
	for want, damage := range cases {
		t.Run(want, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, NewWeights(tiny(true)).Save(dir))
			damage(t, dir)
			_, err := Load(dir)
			require.ErrorContains(t, err, want)
			require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
}

func edit(t *testing.T, dir, old, new string) {
	path := filepath.Join(dir, "config.json")
	data := testutil.ReadFile(t, path)
	require.Contains(t, string(data), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.Replace(string(data), old, new, 1)), 0o644))
}

func TestAdapterSaveAndLoad(t *testing.T) {
	c := tiny(true)
	a := NewAdapter(c, 4, 8, []Module{Query, Down})
	a.Initialize(1)
	randomize(a.Flat(), 2, 0.1)
	a.BaseHash = "sha256:one"
	dir := t.TempDir()
	require.NoError(t, a.Save(dir, 0.1))
	back, err := LoadAdapter(dir, "sha256:one", c)
	require.NoError(t, err)
	require.Equal(t, a.Flat(), back.Flat())
	require.Equal(t, a.Modules(), back.Modules())
	require.Equal(t, a.Scale(), back.Scale())

	_, err = LoadAdapter(dir, "sha256:two", c)
	require.ErrorContains(t, err, "was trained on the base model")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))

	// PEFT rejects fields that LoraConfig does not have.
	data := testutil.ReadFile(t, filepath.Join(dir, "adapter_config.json"))
	var fields map[string]any
	require.NoError(t, json.Unmarshal(data, &fields))
	for field := range fields {
		require.Contains(t, loraConfig, field)
	}

	file, err := safetensors.Open(filepath.Join(dir, "adapter_model.safetensors"))
	require.NoError(t, err)
	defer file.Close()
	require.Equal(t, map[string]string{"format": "pt", "base_model_hash": "sha256:one"}, file.Metadata())
	_, ok := file.Lookup("base_model.model.model.layers.1.mlp.down_proj.lora_B.weight")
	require.True(t, ok)

	c.Layers++
	_, err = LoadAdapter(dir, "", c)
	require.ErrorContains(t, err, "all 3 layers")
}

// loraConfig lists the fields of LoraConfig in PEFT 0.9 and later.
var loraConfig = []string{"peft_type", "auto_mapping", "base_model_name_or_path", "revision", "task_type",
	"inference_mode", "r", "target_modules", "lora_alpha", "lora_dropout", "fan_in_fan_out", "bias", "use_rslora",
	"modules_to_save", "init_lora_weights", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern",
	"megatron_config", "megatron_core", "loftq_config", "use_dora"}

// TestEarlierAdapter checks that the hash of the base model is read from adapter_config.json, where
// earlier versions stored it.
func TestEarlierAdapter(t *testing.T) {
	c, dir := tiny(true), t.TempDir()
	a := NewAdapter(c, 4, 8, []Module{Query})
	require.NoError(t, a.Save(dir, 0))
	path := filepath.Join(dir, "adapter_config.json")
	data := testutil.ReadFile(t, path)
	data = bytes.Replace(data, []byte("{"), []byte(`{"base_model_hash": "sha256:one",`), 1)
	require.NoError(t, os.WriteFile(path, data, 0o600))
	back, err := LoadAdapter(dir, "sha256:one", c)
	require.NoError(t, err)
	require.Equal(t, "sha256:one", back.BaseHash)
	_, err = LoadAdapter(dir, "sha256:two", c)
	require.ErrorContains(t, err, "was trained on the base model sha256:one")
}

func TestPublishedConfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		json  string
		check func(t *testing.T, c Config)
	}{
		"defaults": {
			`{"model_type":"llama","hidden_size":64,"intermediate_size":8,` +
				`"num_hidden_layers":1,"num_attention_heads":4,"vocab_size":9}`,
			func(t *testing.T, c Config) {
				require.Equal(t, 4, c.KVHeads)
				require.Equal(t, 16, c.HeadDim)
				require.Equal(t, 10000.0, c.RopeTheta)
				require.False(t, c.TieWordEmbeddings)
			},
		},
		"several EOS tokens, rope_parameters": {
			`{"model_type":"llama","hidden_size":64,"intermediate_size":8,"num_hidden_layers":1,
			"num_attention_heads":4,"vocab_size":9,
			"eos_token_id":[7,8],"bos_token_id":null,
			"rope_parameters":{"rope_theta":500000,"rope_type":"default"},"rope_scaling":null}`,
			func(t *testing.T, c Config) {
				require.Equal(t, TokenIDs{7, 8}, c.EOS)
				require.Nil(t, c.BOS)
				require.Equal(t, 500000.0, c.RopeTheta)
			},
		},
		"sliding window, dtype": {`{"model_type":"mistral","hidden_size":64,"intermediate_size":8,"num_hidden_layers":1,
			"num_attention_heads":4,"vocab_size":9,
			"sliding_window":4096,"max_position_embeddings":32768,"dtype":"bfloat16"}`,
			func(t *testing.T, c Config) {
				require.Equal(t, 4096, c.MaxPositions)
				require.Equal(t, "bfloat16", c.TorchDType)
			}},
		"unused sliding window": {`{"model_type":"qwen2","hidden_size":64,"intermediate_size":8,"num_hidden_layers":1,
			"num_attention_heads":4,"vocab_size":9,
			"sliding_window":4096,"use_sliding_window":false,"max_position_embeddings":32768}`,
			func(t *testing.T, c Config) { require.Equal(t, 32768, c.MaxPositions) }},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(tc.json), 0o644))
			c, err := ReadConfig(dir)
			require.NoError(t, err)
			tc.check(t, c)
		})
	}
}
