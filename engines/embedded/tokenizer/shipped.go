package tokenizer

import (
	"bytes"
	"encoding/json"
	"slices"
)

// NewBytes returns the tokenizer of the shipped base model: the bytes 0 to 255, <|bos|> 256,
// <|user|> 257, <|assistant|> 258 and <|end|> 259.
func NewBytes() *Tokenizer {
	t, err := parse(map[string][]byte{vocabularyFile: byteVocabulary(), configFile: byteConfig()})
	if err != nil {
		panic(err) // unreachable: the files are constant
	}
	return t
}

// byteVocabulary returns the tokenizer.json of NewBytes.
func byteVocabulary() []byte {
	vocab := map[string]int{}
	for b, char := range byteChars() {
		vocab[char] = b
	}
	var added []any
	for i, name := range []string{markBOS, markUser, markAssistant, markEnd} {
		added = append(added, map[string]any{
			"id": 256 + i, "content": name, "special": true,
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
		})
	}
	sequence := map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}}
	bos := map[string]any{"SpecialToken": map[string]any{"id": markBOS, "type_id": 0}}
	return format(map[string]any{
		"version": "1.0", "truncation": nil, "padding": nil, "normalizer": nil, "added_tokens": added,
		"pre_tokenizer": map[string]any{
			"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false,
		},
		"post_processor": map[string]any{
			"type": "TemplateProcessing", "single": []any{bos, sequence},
			"pair": []any{bos, sequence, map[string]any{"Sequence": map[string]any{"id": "B", "type_id": 1}}},
			"special_tokens": map[string]any{
				markBOS: map[string]any{"id": markBOS, "ids": []int{256}, "tokens": []string{markBOS}},
			},
		},
		"decoder": map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
		"model": map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []any{},
		},
	})
}

// byteConfig returns the tokenizer_config.json of NewBytes.
func byteConfig() []byte {
	return format(map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": markBOS, "eos_token": markEnd, "add_bos_token": true,
		"clean_up_tokenization_spaces": false, "chat_template": chatTemplate,
	})
}

// format returns indented JSON with sorted keys, so that equal values have equal bytes.
func format(value any) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		panic(err) // unreachable: the values are constant
	}
	return slices.Clip(b.Bytes())
}
