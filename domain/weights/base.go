package weights

import (
	"bytes"
	"encoding/json"
	"path/filepath"
)

// baseField is the field of adapter_config.json with the base model: a path, or a name on a hub.
const baseField = "base_model_name_or_path"

// TokenizerFiles are the files of a Hugging Face directory that a tokenizer is loaded from, with its
// chat template.
var TokenizerFiles = []string{"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
	"added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja"}

// SetBaseModel returns config, the content of adapter_config.json, with the base model set to base.
// If base is "", it sets the base model to fallback, but only if config names no base model, or
// names one by an absolute path, which other machines may not have. It returns nil if config needs
// no change. Other fields stay the same.
func SetBaseModel(config []byte, base, fallback string) ([]byte, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(config, &fields); err != nil {
		return nil, invalidf("is not a JSON object: %v", err)
	}
	var now string
	if raw, ok := fields[baseField]; ok && json.Unmarshal(raw, &now) != nil {
		now = ""
	}
	if base == "" && (now == "" || filepath.IsAbs(now)) {
		base = fallback
	}
	if base == "" || base == now {
		return nil, nil
	}
	named := map[string]any{baseField: base}
	for field, raw := range fields {
		if field != baseField {
			named[field] = raw
		}
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	err := encoder.Encode(named)
	return out.Bytes(), err
}
