package tokenizer

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"pgregory.net/rapid"
)

func words(c preTokenizer, text string) []string {
	var out []string
	for len(text) > 0 {
		n := c.next(text)
		out = append(out, text[:n])
		text = text[n:]
	}
	return out
}

// TestWords compares the pre-tokenizers with the regular expressions, evaluated by hand: the first
// alternative that matches counts, and \s+(?!\S) leaves the last space to the next word.
func TestWords(t *testing.T) {
	for _, c := range []struct {
		cut  preTokenizer
		text string
		want string // expected words, joined by |
	}{
		{gpt2, "Hello world", "Hello| world"},
		{gpt2, "I'll say it's 1234,ok!!", "I|'ll| say| it|'s| 1234|,|ok|!!"},
		{gpt2, "I'LL", "I|'|LL"},
		{gpt2, "a  b", "a| | b"},
		{gpt2, "a   \n  b", "a|   \n | b"},
		{gpt2, "end  ", "end|  "},
		{gpt2, "x\n\ny", "x|\n|\n|y"},
		{gpt2, " \tx", " |\t|x"},
		{gpt2, "naïve 東京", "naïve| 東京"},
		{gpt2, "½ x²", "½| x|²"},
		{gpt2, "a\u00a0b", "a|\u00a0|b"},

		{llama3, "Hello world", "Hello| world"},
		{llama3, "I'LL it'S", "I|'LL| it|'S"},
		{llama3, "12345 678", "123|45| |678"},
		{llama3, "(foo)", "(foo|)"},
		{llama3, "\tfoo", "\tfoo"},
		{llama3, "\nfoo", "\n|foo"},
		{llama3, "x !!\n\ny", "x| !!\n\n|y"},
		{llama3, "a  \n \n  b", "a|  \n \n| | b"},
		{llama3, "a   b", "a|  | b"},
		{llama3, "a   ", "a|   "},
		{llama3, "  12", " | |12"},
		{llama3, " 's", " '|s"},
		{llama3, "'sure", "'s|ure"},
		{llama3, "it\u2019s", "it|\u2019s"},
		{llama3, "\u017f'\u017f", "\u017f|'\u017f"},
		{llama3, "a\r\nb", "a|\r\n|b"},
		{llama3, "東京123", "東京|123"},
		{llama3, "\U0001F642ok \U0001F642", "\U0001F642ok| \U0001F642"},
		{llama3, "\xff\xfe a", "\xff\xfe| a"},

		{qwen2, "12345 678", "1|2|3|4|5| |6|7|8"},
		{qwen2, "We'Re 1st", "We|'Re| |1|st"},

		{digits, "ab12c", "ab|1|2|c"},
		{numbers, "ab12c", "ab|12|c"},
	} {
		assert.Equal(t, c.want, strings.Join(words(c.cut, c.text), "|"), "%q by %d", c.text, c.cut)
	}
}

// TestWordsPartitionTheText checks that pre-tokenizers lose or duplicate no character, and that
// their words are not empty and end at character boundaries.
func TestWordsPartitionTheText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := strings.Join(
			rapid.SliceOf(rapid.SampledFrom([]string{
				"a", "É", "東", "7", "½", " ", "\n", "\r", "\t", "\u00a0", "'", "s", "LL", "!", "🙂", "\xff", "\u0301",
			})).Draw(t, "text"), "")
		for c := gpt2; c <= numbers; c++ {
			got := words(c, text)
			if strings.Join(got, "") != text {
				t.Fatalf("%q becomes %q", text, got)
			}
			for _, word := range got {
				if strings.ToValidUTF8(text, "") == text && strings.ToValidUTF8(word, "") != word {
					t.Fatalf("%q cuts a character", got)
				}
			}
		}
	})
}

// TestMergesMatchTheDefinition compares the heap-based merging with the definition of byte-pair
// encoding: merge the first pair of the lowest rank, and repeat.
func TestMergesMatchTheDefinition(t *testing.T) {
	source := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		b := &bpe{merges: map[uint64]merged{}}
		for i := range b.bytes {
			b.bytes[i] = int32(i)
		}
		for rank := range 1 + source.IntN(40) {
			pair := pairOf(part1(source, rank), part1(source, rank))
			if _, ok := b.merges[pair]; !ok {
				b.merges[pair] = merged{int32(rank), int32(256 + rank)}
			}
		}
		word := make([]byte, source.IntN(60))
		for i := range word {
			word[i] = "abc"[source.IntN(3)]
		}
		assert.Equal(t, simple(b, word), b.append(nil, string(word)), "%s", word)
	}
}

// part1 returns a token that a merge of the given rank may use: a letter or an earlier merge.
func part1(source *rand.Rand, rank int) int32 {
	if n := source.IntN(3 + rank); n >= 3 {
		return int32(256 + n - 3)
	}
	return int32("abc"[source.IntN(3)])
}

func simple(b *bpe, word []byte) []int {
	var ids []int
	for _, c := range word {
		ids = append(ids, int(b.bytes[c]))
	}
	for {
		best, found := -1, merged{}
		for i := range len(ids) - 1 {
			if m, ok := b.merges[pairOf(int32(ids[i]), int32(ids[i+1]))]; ok && (best < 0 || m.rank < found.rank) {
				best, found = i, m
			}
		}
		if best < 0 {
			return ids
		}
		ids = append(ids[:best], ids[best+1:]...)
		ids[best] = int(found.token)
	}
}
