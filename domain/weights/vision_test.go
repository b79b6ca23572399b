package weights

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModelsThatReadImages checks which models read images, from their config.json and the names of
// their files.
func TestModelsThatReadImages(t *testing.T) {
	for text, want := range map[string]bool{
		`{"model_type": "llama"}`:                                                         false,
		`{"model_type": "qwen2_5_vl", "vision_config": {"depth": 32}}`:                    true,
		`{"model_type": "gemma3_text", "vision_config": null}`:                            false,
		`{"model_type": "x", "vision_config": {}}`:                                        false,
		`{"model_type": "llava", "mm_vision_tower": "openai/clip-vit-large-patch14"}`:     true,
		`{"model_type": "phi3_v", "img_processor": {"name": "clip_vision_model"}}`:        true,
		`{"model_type": "qwen", "visual": {"heads": 16}}`:                                 true,
		`{"model_type": "pixtral", "vision_encoder": {"hidden_size": 1024}}`:              true,
		`{"model_type": "fuyu", "architectures": ["FuyuForCausalLM"]}`:                    true,
		`{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]}`:           false,
		`{"model_type": "x", "text_config": {"model_type": "llama"}, "vision_config": 5}`: true,
	} {
		var config Config
		require.NoError(t, json.Unmarshal([]byte(text), &config))
		require.Equal(t, want, config.readsImages(), text)
	}
	for name, want := range map[string]bool{"mmproj.gguf": true, "mmproj-model-f16.gguf": true, "model.gguf": false,
		"mmproj.safetensors": false} {
		require.Equal(t, want, Directory{Sizes: map[string]int64{name: 1, "config.json": 2}}.hasProjector(), name)
	}
}
