package weights

import (
	"encoding/json"
	"slices"
	"strings"
)

// visionConfig has the fields of config.json that describe an image encoder. Each family of models
// uses one of them.
type visionConfig struct {
	VisionConfig  json.RawMessage `json:"vision_config"`
	VisionEncoder json.RawMessage `json:"vision_encoder"`
	VisionTower   json.RawMessage `json:"mm_vision_tower"`
	Visual        json.RawMessage `json:"visual"`
	ImageEncoder  json.RawMessage `json:"img_processor"`
}

// visionArchitectures are the architectures of models that read images although their configuration
// has none of the fields of visionConfig.
var visionArchitectures = []string{"FuyuForCausalLM", "MolmoForCausalLM", "ChameleonForConditionalGeneration"}

// readsImages reports whether the configuration describes an image encoder.
func (c *Config) readsImages() bool {
	for _, field := range []json.RawMessage{c.VisionConfig, c.VisionEncoder, c.VisionTower, c.Visual, c.ImageEncoder} {
		switch text := strings.TrimSpace(string(field)); text {
		case "", "null", "{}", "false", `""`:
		default:
			return true
		}
	}
	return slices.ContainsFunc(c.Architectures, func(a string) bool { return slices.Contains(visionArchitectures, a) })
}

// hasProjector reports whether one of the files is a multimodal projector in the format GGUF, with
// which the server of llama.cpp reads images.
func (f Directory) hasProjector() bool {
	for name := range f.Sizes {
		if IsProjector(name) {
			return true
		}
	}
	return false
}

// IsProjector reports whether a file is a multimodal projector in the format GGUF, from its name.
func IsProjector(name string) bool {
	return strings.HasPrefix(name, "mmproj") && strings.HasSuffix(name, ".gguf")
}
