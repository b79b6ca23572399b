package tokenizer_test

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/miniature"
	"anneal/internal/testutil"
)

// TestPublishedVocabularies compares Encode for the full vocabularies of GPT-2 and Llama 3 with
// other implementations, which `make clients` installs.
func TestPublishedVocabularies(t *testing.T) {
	node, err := exec.LookPath("node")
	script := filepath.Join("testdata", "published", "dump.mjs")
	if _, missing := os.Stat(filepath.Join("testdata", "published", "node_modules")); err != nil || missing != nil {
		t.Skip("the published vocabularies are not installed: make clients")
	}
	texts := texts()
	input := testutil.Marshal(t, texts)
	dir := t.TempDir()
	command := exec.CommandContext(t.Context(), node, script, dir)
	command.Stdin, command.Stderr = bytes.NewReader(input), os.Stderr
	output, err := command.Output()
	require.NoError(t, err)
	var want map[string][][]int
	require.NoError(t, json.Unmarshal(output, &want))
	require.Len(t, want, 2)
	for name, all := range want {
		tok := mustLoad(t, filepath.Join(dir, name))
		require.Len(t, all, len(texts))
		tokens := 0
		for i, text := range texts {
			require.Equal(t, all[i], append([]int{}, tok.Encode(text)...), "%s: %q", name, text)
			require.Equal(t, text, tok.Decode(all[i]))
			tokens += len(all[i])
		}
		t.Logf("%s: %d texts, %d tokens", name, len(texts), tokens)
		assert.Greater(t, tok.VocabSize(), 50_000)
	}
}

// texts returns a corpus and random texts that are hard to split.
func texts() []string {
	out := []string{
		miniature.Corpus, "", " ", "Hello, world!", "don't DON'T We'Re o'clock ''s", "   leading", "trailing   ",
		"\t\ttabs\n\n\n", "x = y**2;\r\n\r\n  return",
		"3.14159265358979", "0x1F4A9 1,234,567.89", "naïve façade Ünïcödé", "東京都は日本の首都です。", "Привет, мир", "مرحبا بالعالم",
		"👩‍👩‍👧‍👦🙂", "ﬁ ½ ² Ⅷ", "\u00a0nbsp\u3000wide", strings.Repeat("ab", 500),
	}
	pieces := strings.Split(miniature.Corpus, " ")
	pieces = append(pieces, " ", "  ", "\n", "\t", "'s", "'LL", "123", "4567", "é", "e\u0301", "東", "🙂", "!!", "...", "_",
		"#", "İ", "ß")
	source := rand.New(rand.NewPCG(5, 6))
	for range 1000 {
		var text strings.Builder
		for range source.IntN(20) {
			text.WriteString(pieces[source.IntN(len(pieces))])
			if source.IntN(2) == 0 {
				text.WriteByte(' ')
			}
		}
		out = append(out, text.String())
	}
	return out
}
