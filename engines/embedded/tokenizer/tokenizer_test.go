package tokenizer_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded/tokenizer"
	"anneal/internal/testutil"
)

const bos, user, assistant, end = 256, 257, 258, 259

func TestBytes(t *testing.T) {
	tok := tokenizer.NewBytes()
	assert.Equal(t, 260, tok.VocabSize())
	assert.Equal(t, []int{bos, user, assistant, end, -1}, []int{
		tok.BOS(), tok.Special("<|user|>"), tok.Special("<|assistant|>"), tok.EOS(), tok.Special("<|nothing|>"),
	})
	assert.Equal(t, []int{'h', 0xc3, 0xa9}, tok.Encode("hé"))
	assert.Equal(t, []int{bos, 'h', 'i'}, tok.Prompt("hi"))
	assert.Equal(t, 3, tok.Count("hi"))
	assert.Equal(t, "hé", tok.Decode([]int{bos, 'h', assistant, 0xc3, 0xa9, end, 9999, -1}))
}

func TestTextIsNeverSpecial(t *testing.T) {
	tok := tokenizer.NewBytes()
	ids, _, err := tok.Chat([]tokenizer.Message{{Role: "user", Content: "a<|end|>b"}})
	require.NoError(t, err)
	assert.Equal(t, append(append([]int{bos}, tok.Encode("a<|end|>b")...), assistant), ids)
	assert.NotContains(t, ids, end)
}

func TestDecodeNeverSplitsCharacters(t *testing.T) {
	tok := tokenizer.NewBytes()
	for text, want := range map[string]string{
		"naïve 東京 🙂":       "naïve 東京 🙂",
		"\xff\xfea":        "\uFFFD\uFFFDa",
		"\xe6\x9d":         "\uFFFD\uFFFD", // an incomplete character at the end
		"\xe6\x9dx":        "\uFFFD\uFFFDx",
		"\xf0\x9f\x99\xc3": "\uFFFD\uFFFD\uFFFD\uFFFD",
		"":                 "",
	} {
		d, got := tok.NewDecoder(), ""
		for _, id := range tok.Encode(text) {
			piece := d.Next(id)
			assert.True(t, utf8.ValidString(piece), "%q in %q", piece, text)
			got += piece
		}
		got += d.Rest()
		assert.Equal(t, want, got)
		assert.Equal(t, string([]rune(text)), got, "the same as Go's own conversion")
		assert.Equal(t, want, tok.Decode(tok.Encode(text)))
	}
}

func TestChat(t *testing.T) {
	tok, zero := tokenizer.NewBytes(), 0.0
	for name, c := range map[string]struct {
		messages []tokenizer.Message
		ids      []int
		isTarget string // 1 for a target of the loss, 0 for other tokens
	}{
		"prompt": {[]tokenizer.Message{{Role: "user", Content: "q"}}, []int{bos, 'q', assistant}, "000"},
		"answer": {[]tokenizer.Message{{Role: "user", Content: "q"}, {Role: "assistant", Content: "ab"}},
			[]int{bos, 'q', assistant, 'a', 'b', end}, "001111"},
		"system": {[]tokenizer.Message{
			{Role: "system", Content: "s"}, {Role: "user", Content: "q"}, {Role: "assistant", Content: "a"},
		},
			[]int{bos, 's', user, 'q', assistant, 'a', end}, "0000111"},
		"weight 0": {[]tokenizer.Message{{Role: "user", Content: "q"}, {Role: "assistant", Content: "a", Weight: &zero},
			{Role: "user", Content: "r"}, {Role: "assistant", Content: "b"}},
			[]int{bos, 'q', assistant, 'a', end, 'r', assistant, 'b', end}, "000000111"},
		"no question": {[]tokenizer.Message{{Role: "assistant", Content: "a"}}, []int{bos, 'a', end}, "011"},
	} {
		t.Run(name, func(t *testing.T) {
			ids, isTarget, err := tok.Chat(c.messages)
			require.NoError(t, err)
			assert.Equal(t, c.ids, ids)
			marks := ""
			for _, l := range isTarget {
				marks += map[bool]string{false: "0", true: "1"}[l]
			}
			assert.Equal(t, c.isTarget, marks)
		})
	}
	_, _, err := tok.Chat([]tokenizer.Message{{Role: "user"}, {Role: "tool"}})
	assert.ErrorContains(t, err, `messages[1].role: "tool"`)
	assert.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}

func TestSaveAndLoad(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	loaded := mustLoad(t, dir)
	assert.Equal(t, tokenizer.NewBytes(), loaded)
	again := t.TempDir()
	require.NoError(t, loaded.Save(again))
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		a := testutil.ReadFile(t, filepath.Join(dir, name))
		b := testutil.ReadFile(t, filepath.Join(again, name))
		assert.Equal(t, string(a), string(b))
	}
}

func TestByteLevelVocabulary(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	data := testutil.ReadFile(t, filepath.Join(dir, "tokenizer.json"))
	var file struct {
		Model struct {
			Vocab map[string]int `json:"vocab"`
		} `json:"model"`
	}
	require.NoError(t, json.Unmarshal(data, &file))
	for token, b := range map[string]int{"!": 33, "A": 65, "Ġ": 32, "Ċ": 10, "Ā": 0, "ÿ": 255, "ł": 160, "Ń": 173} {
		assert.Equal(t, b, file.Model.Vocab[token], token)
	}
}

func TestUnsupportedTokenizers(t *testing.T) {
	for name, c := range map[string]struct{ file, old, new, want string }{

		"type":       {"tokenizer.json", `"type": "BPE"`, `"type": "Unigram"`, `"Unigram"`},
		"normalizer": {"tokenizer.json", `"normalizer": null`, `"normalizer": {"type": "NFKC"}`, "NFKC"},
		"prefix":     {"tokenizer.json", `"add_prefix_space": false`, `"add_prefix_space": true`, "add_prefix_space"},
		"byte":       {"tokenizer.json", `"A": 65`, `"AA": 65`, "no token for byte 65"},
		"twice":      {"tokenizer.json", `"A": 65`, `"A": 66`, "two tokens to the ID 66"},

		"clash":  {"tokenizer.json", `"id": 259`, `"id": 65`, "the same ID 65"},
		"number": {"tokenizer.json", `"id": 259`, `"id": -1`, "the ID -1"},
		"many": {
			"tokenizer.json", `"added_tokens": [`,
			`"added_tokens": [` + strings.Repeat(`{"id": 300, "content": "<|x|>"},`, 10_000),
			"added tokens; the embedded engine supports at most 10000",
		},
		"long": {
			"tokenizer.json", `"added_tokens": [`,
			`"added_tokens": [{"id": 300, "content": "` + strings.Repeat("x", 1001) + `"},`,
			"of 1001 bytes; the embedded engine supports at most 1000",
		},
		"no JSON": {"tokenizer.json", `{`, `[`, "is not a valid tokenizer"},
		"eos":     {"tokenizer_config.json", `"eos_token": "<|end|>"`, `"eos_token": "</s>"`, `"</s>"`},
		"config":  {"tokenizer_config.json", `"eos_token": "<|end|>"`, `"eos_token": 3`, "configuration"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, tokenizer.NewBytes().Save(dir))
			edit(t, filepath.Join(dir, c.file), c.old, c.new)
			_, err := tokenizer.Load(dir)
			require.ErrorContains(t, err, c.want)
			assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
	_, err := tokenizer.Load(t.TempDir())
	assert.ErrorContains(t, err, "tokenizer.json is missing")
}

func edit(t *testing.T, path, old, replacement string) {
	data := testutil.ReadFile(t, path)
	require.Contains(t, string(data), old)
	require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), old, replacement)), 0o644))
}

func TestConfiguration(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	config := filepath.Join(dir, "tokenizer_config.json")
	edit(t, config, `"eos_token": "<|end|>"`, `"eos_token": {"content": "<|user|>"}`)
	edit(t, config, `"add_bos_token": true`, `"add_bos_token": false`)
	tok := mustLoad(t, dir)
	assert.Equal(t, user, tok.EOS())
	assert.Equal(t, -1, tok.BOS())
	assert.Equal(t, []int{'a'}, tok.Prompt("a"))
	_, _, err := tok.Chat(nil)
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err),
		"the template begins with a token that the model does not have")

	require.NoError(t, os.Remove(config))
	tok = mustLoad(t, dir)
	assert.Equal(t, -1, tok.EOS())
}

// TestBOSMayEqualEOS checks that BOS and EOS may be one token, as in GPT-2's vocabulary.
func TestBOSMayEqualEOS(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	edit(t, filepath.Join(dir, "tokenizer_config.json"), `"eos_token": "<|end|>"`, `"eos_token": "<|bos|>"`)
	tok := mustLoad(t, dir)
	assert.GreaterOrEqual(t, tok.EOS(), 256)
	assert.Equal(t, tok.EOS(), tok.BOS())
}
