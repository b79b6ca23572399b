package tokenizer_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/engines/embedded/miniature"
	"anneal/engines/embedded/tokenizer"
	"anneal/internal/testutil"
)

func load(t *testing.T, family string) *tokenizer.Tokenizer {
	dir := t.TempDir()
	require.NoError(t, miniature.Write(dir, family))
	tok := mustLoad(t, dir)
	return tok
}

// TestRoundTrip checks that encoded text decodes unchanged (for Qwen, to its NFC form) and streams
// in complete characters. The text on which the vocabulary was trained must take less than two
// tokens for three bytes.
func TestRoundTrip(t *testing.T) {
	for _, family := range miniature.Families() {
		tok := load(t, family)
		composed := func(text string) string {
			if strings.HasPrefix(family, "qwen") {
				return norm.NFC.String(text)
			}
			return text
		}
		assert.Less(t, 3*len(tok.Encode(miniature.Corpus)), 2*len(miniature.Corpus), family)
		rapid.Check(t, func(t *rapid.T) {
			pieces := rapid.SliceOf(rapid.SampledFrom([]string{
				"the ", "small ", "東京", "e\u0301", "é", "🙂", " ", "\n", "12", "'s", "<think>", "<|im_end|>", "zq",
			})).Draw(t, "pieces")
			text := strings.Join(pieces, "") + rapid.String().Draw(t, "more")
			ids := tok.Encode(text)
			d, got := tok.NewDecoder(), ""
			for _, id := range ids {
				if id == tok.EOS() {
					t.Fatalf("%q becomes the end of the text", text)
				}
				piece := d.Next(id)
				if !utf8.ValidString(piece) {
					t.Fatalf("%q cuts a character", piece)
				}
				got += piece
			}
			if got += d.Rest(); got != composed(text) {
				t.Fatalf("%q becomes %q", text, got)
			}
			if n := len(ids); tok.BOS() < 0 && tok.Count(text) != n || tok.BOS() >= 0 && tok.Count(text) != n+1 {
				t.Fatalf("%d tokens are counted as %d", n, tok.Count(text))
			}
		})
	}
}

// TestFamilies checks the BOS and EOS of each family, and which added tokens decode to text.
func TestFamilies(t *testing.T) {
	three := load(t, "llama3")
	assert.Equal(t, three.Special("<|begin_of_text|>"), three.BOS())
	assert.Equal(t, three.Special("<|eot_id|>"), three.EOS())
	assert.Equal(t, three.BOS(), three.Prompt("the")[0])

	qwen := load(t, "qwen3")
	assert.Equal(t, -1, qwen.BOS())
	assert.Equal(t, []int{qwen.Special("<think>")}, qwen.Encode("<think>"), "an added token that decodes to text")
	assert.NotContains(t, qwen.Encode("<|im_end|>"), qwen.EOS(), "a special token is not text")
	assert.Equal(t, qwen.Encode("\u00e9"), qwen.Encode("e\u0301"), "composed")
	assert.Equal(t, "<think>", qwen.Decode([]int{qwen.Special("<think>"), qwen.EOS()}))
	assert.Equal(t, []byte(" the"), qwen.Bytes(qwen.Encode(" the")[0]), "one token of several bytes")

	small := load(t, "llama")
	assert.Len(t, small.Encode("777"), 3, "each digit by itself")
}

// TestLongWords checks that a long text without spaces, which is one word, is encoded. An
// encoder that takes quadratic time would not finish.
func TestLongWords(t *testing.T) {
	text := strings.Repeat("mallinepleers", 80_000)
	tok := load(t, "llama3")
	ids := tok.Encode(text)
	assert.Less(t, len(ids), len(text)/2)
	assert.Equal(t, text, tok.Decode(ids))
}

// TestByteFallback checks that a character vocabulary such as Llama 2's encodes missing
// characters as bytes.
func TestByteFallback(t *testing.T) {
	vocab := map[string]int{"<unk>": 0, "<s>": 1, "</s>": 2}
	for b := range 256 {
		vocab["<0x"+strings.ToUpper(string("0123456789abcdef"[b>>4])+string("0123456789abcdef"[b&15]))+">"] = 3 + b
	}
	for i, token := range []string{"\u2581", "h", "i", "é", "\u2581h", "\u2581hi"} {
		vocab[token] = 259 + i
	}
	special := func(id int, name string) map[string]any {
		return map[string]any{"id": id, "content": name, "special": true}
	}
	file := map[string]any{
		"added_tokens": []any{special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")},
		"normalizer": map[string]any{"type": "Sequence", "normalizers": []any{
			map[string]any{"type": "Prepend", "prepend": "\u2581"},
			map[string]any{"type": "Replace", "pattern": map[string]any{"String": " "}, "content": "\u2581"},
		}},
		"pre_tokenizer": nil,
		"post_processor": map[string]any{
			"type": "TemplateProcessing", "single": []any{map[string]any{"SpecialToken": map[string]any{"id": "<s>"}}},
		},
		"model": map[string]any{
			"type": "BPE", "byte_fallback": true, "fuse_unk": true, "vocab": vocab, "merges": []string{"\u2581 h", "\u2581h i"},
		},
	}
	dir := t.TempDir()
	write := func() {
		data := testutil.Marshal(t, file)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tokenizer.json"), data, 0o644))
	}
	write()
	tok := mustLoad(t, dir)
	assert.Equal(t, []int{1, 264, 263, 262, 259, 3 + 0xc3, 3 + 0xbc}, tok.Prompt("hi hé ü"))
	assert.Equal(t, "hi hé ü", tok.Decode(tok.Prompt("hi hé ü")))
	assert.Equal(t, " hi", tok.NewDecoder().Next(264), "continued text keeps its space")

	file["normalizer"] = nil
	write()
	_, err := tokenizer.Load(dir)
	require.ErrorContains(t, err, "byte_fallback")
	assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
}

func TestUnsupportedFeatures(t *testing.T) {
	for want, c := range map[string]struct{ old, new string }{
		"which the embedded engine does not support": {`"lstrip": false`, `"lstrip": true`},
		"the pattern":        {`{1,3}`, `{1,4}`},
		"type \"Metaspace\"": {`"type": "Split"`, `"type": "Metaspace"`},
		"merges \"Ġ\" and \"\", but lacks one of these tokens": {`"merges": [`, `"merges": ["Ġ",`},
		"sets dropout":              {`"dropout": null`, `"dropout": 0.1`},
		"continuing_subword_prefix": {`"continuing_subword_prefix": null`, `"continuing_subword_prefix": "##"`},
		"maps the token \"<|eot_id|>\" to the IDs 1000000 and 380": {`"vocab": {`, `"vocab": {"<|eot_id|>": 1000000,`},
	} {
		t.Run(want, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, miniature.Write(dir, "llama3"))
			path := filepath.Join(dir, "tokenizer.json")
			data := testutil.ReadFile(t, path)
			require.Contains(t, string(data), c.old)
			require.NoError(t, os.WriteFile(path, []byte(strings.ReplaceAll(string(data), c.old, c.new)), 0o644))
			_, err := tokenizer.Load(dir)
			require.ErrorContains(t, err, want)
			assert.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
		})
	}
}

func BenchmarkEncode(b *testing.B) {
	dir := b.TempDir()
	require.NoError(b, miniature.Write(dir, "llama3"))
	tok := mustLoad(b, dir)
	text := strings.Repeat(miniature.Corpus, 100)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		tok.Encode(text)
	}
}

func mustLoad(t testing.TB, dir string) *tokenizer.Tokenizer {
	t.Helper()
	tok, err := tokenizer.Load(dir)
	require.NoError(t, err)
	return tok
}
