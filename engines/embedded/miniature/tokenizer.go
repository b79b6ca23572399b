package miniature

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// Pre-tokenizer patterns of the families.
const (
	Llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)` +
		`|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	Qwen2Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)` +
		`|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

// Corpus is the text from which the vocabularies are computed.
const Corpus = `The small model answers the small questions of the people who ask it. ` +
	`It's been trained on a machine that they own,
and they've asked it about numbers: 12, 123, 1234 and 12345. ` +
	`Naïve café owners say "we'll see"; the 東京 office says 東京 too.
	for i := range items { total += items[i].price }   // the total of the items
People who own the machine own the answers, and the answers are small: the model is small.`

// merges returns the first n merges of a byte-pair encoding that is trained on Corpus, in the
// characters of byte-level vocabularies.
func merges(n int) [][2]string {
	var words [][]string
	for _, word := range strings.Split(strings.ReplaceAll(Corpus, " ", "\x00 "), "\x00") {
		var parts []string
		for i := range len(word) {
			parts = append(parts, charOf(word[i]))
		}
		words = append(words, parts)
	}
	var out [][2]string
	for range n {
		counts := map[[2]string]int{}
		for _, word := range words {
			for i := range len(word) - 1 {
				counts[[2]string{word[i], word[i+1]}]++
			}
		}
		best := slices.MaxFunc(slices.Collect(maps.Keys(counts)), func(a, b [2]string) int {
			return cmp.Or(cmp.Compare(counts[a], counts[b]), cmp.Compare(a[0]+a[1], b[0]+b[1]), cmp.Compare(a[0], b[0]))
		})
		out = append(out, best)
		for w, word := range words {
			words[w] = join(word, best)
		}
	}
	return out
}

func join(word []string, pair [2]string) []string {
	var out []string
	for i := 0; i < len(word); i++ {
		if i+1 < len(word) && word[i] == pair[0] && word[i+1] == pair[1] {
			out = append(out, pair[0]+pair[1])
			i++
			continue
		}
		out = append(out, word[i])
	}
	return out
}

// charOf returns the character that represents a byte in a byte-level vocabulary.
func charOf(b byte) string {
	next := rune(256)
	for other := range rune(256) {
		printable := other >= '!' && other <= '~' || other >= '¡' && other <= '¬' || other >= '®'
		if other == rune(b) {
			if printable {
				return string(other)
			}
			return string(next)
		}
		if !printable {
			next++
		}
	}
	panic("not a byte")
}

// tokenizerFile returns the tokenizer.json of a family. The special tokens follow the vocabulary.
func tokenizerFile(f family) map[string]any {
	vocab := map[string]int{}
	for b := range 256 {
		vocab[charOf(byte(b))] = b
	}
	var lines []any
	for _, pair := range merges(f.merges) {
		if _, ok := vocab[pair[0]+pair[1]]; !ok {
			vocab[pair[0]+pair[1]] = len(vocab)
		}
		if f.pairs {
			lines = append(lines, pair[:])
		} else {
			lines = append(lines, pair[0]+" "+pair[1])
		}
	}
	var added []any
	for i, name := range f.specials {
		added = append(added, map[string]any{"id": len(vocab) + i, "content": name, "special": name != "<think>",
			"single_word": false, "lstrip": false, "rstrip": false, "normalized": false})
	}
	file := map[string]any{
		"version":      "1.0",
		"added_tokens": added, "normalizer": nil, "pre_tokenizer": preTokenizer(f.pattern), "post_processor": nil,
		"model": map[string]any{
			"type": "BPE", "vocab": vocab, "merges": lines, "ignore_merges": f.ignoreMerges, "byte_fallback": false,
			"dropout": nil, "unk_token": nil, "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
		},
	}
	if f.compose {
		file["normalizer"] = map[string]any{"type": "NFC"}
	}
	if f.bos != "" {
		file["post_processor"] = map[string]any{"type": "Sequence", "processors": []any{
			map[string]any{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
			map[string]any{"type": "TemplateProcessing", "single": []any{
				map[string]any{"SpecialToken": map[string]any{"id": f.bos, "type_id": 0}},
				map[string]any{"Sequence": map[string]any{"id": "A", "type_id": 0}},
			}},
		}}
	}
	return file
}

// preTokenizer returns a pre-tokenizer that splits at pattern. If pattern is "", it splits at
// digits and then at GPT-2's pattern, as SmolLM does.
func preTokenizer(pattern string) any {
	bytes := map[string]any{
		"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": pattern == "",
	}
	first := map[string]any{
		"type": "Split", "pattern": map[string]any{"Regex": pattern}, "behavior": "Isolated", "invert": false,
	}
	if pattern == "" {
		first = map[string]any{"type": "Digits", "individual_digits": true}
	}
	return map[string]any{"type": "Sequence", "pretokenizers": []any{first, bytes}}
}
