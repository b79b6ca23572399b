package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// A preTokenizer splits text into words, within which byte-pair encoding merges tokens. It does not
// use package regexp, because the regular expressions in tokenizer.json have lookaheads.
type preTokenizer int

const (
	gpt2   preTokenizer = iota + 1
	llama3              // splits numbers into groups of at most three digits
	qwen2               // splits numbers into single digits
	digits              // splits text before and after each digit
	numbers
)

// The supported regular expressions, as tokenizer.json contains them.
const (
	gpt2Pattern   = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
	llama3Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)` +
		`|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
	qwen2Pattern = `(?i:'s|'t|'re|'ve|'m|'ll|'d)` +
		`|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`
)

var patterns = map[string]preTokenizer{gpt2Pattern: gpt2, llama3Pattern: llama3, qwen2Pattern: qwen2}

// next returns the length of the first word of a text, which must not be empty.
func (c preTokenizer) next(text string) int {
	switch c {
	case gpt2:
		return nextGPT2(text)
	case llama3:
		return nextLlama(text, 3)
	case qwen2:
		return nextLlama(text, 1)
	case digits, numbers:
		r, size := utf8.DecodeRuneInString(text)
		if c == digits && unicode.IsNumber(r) {
			return size
		}
		numeric := unicode.IsNumber(r)
		for at, r := range text {
			if unicode.IsNumber(r) != numeric {
				return at
			}
		}
	}
	return len(text)
}

// A class is a character class of the regular expressions.
type class uint8

const (
	letter class = iota // \p{L}
	number              // \p{N}
	space               // \s
	other
)

func classOf(r rune) class {
	switch {
	case unicode.IsLetter(r):
		return letter
	case unicode.IsNumber(r):
		return number
	case unicode.IsSpace(r):
		return space
	}
	return other
}

// classAt returns the class of the character at an offset; ok is false at the end of the text.
func classAt(text string, offset int) (c class, ok bool) {
	if offset >= len(text) {
		return other, false
	}
	r, _ := utf8.DecodeRuneInString(text[offset:])
	return classOf(r), true
}

// run returns the end of the characters of class c that begin at an offset.
func run(text string, offset int, c class) int {
	for i, r := range text[offset:] {
		if classOf(r) != c {
			return offset + i
		}
	}
	return len(text)
}

func nextGPT2(text string) int {
	for _, short := range contractions {
		if strings.HasPrefix(text, short) {
			return len(short)
		}
	}
	at := 0
	if text[0] == ' ' {
		at = 1
	}
	if c, ok := classAt(text, at); ok && c != space {
		return run(text, at, c)
	}
	return nextSpace(text)
}

// nextLlama returns the length of the first word according to Llama 3's regular expression. A
// number has at most group digits.
func nextLlama(text string, group int) int {
	if n := contraction(text); n > 0 {
		return n
	}
	first, size := utf8.DecodeRuneInString(text)
	switch c := classOf(first); {
	case c == letter:
		return run(text, 0, letter)
	case c == number:
		end := 0
		for i := 0; i < group; i++ {
			if c, ok := classAt(text, end); !ok || c != number {
				break
			}
			_, size := utf8.DecodeRuneInString(text[end:])
			end += size
		}
		return end
	case first != '\r' && first != '\n':
		if c, ok := classAt(text, size); ok && c == letter {
			return run(text, size, letter)
		}
	}
	at := 0
	if first == ' ' {
		at = 1
	}
	if c, ok := classAt(text, at); ok && c == other {
		end := run(text, at, other)
		return end + len(text[end:]) - len(strings.TrimLeft(text[end:], "\r\n"))
	}
	if last := strings.LastIndexAny(text[:run(text, 0, space)], "\r\n"); last >= 0 {
		return last + 1
	}
	return nextSpace(text)
}

// nextSpace returns the length of the whitespace at the beginning of text. If a word follows
// several spaces, the last one belongs to the word and does not count.
func nextSpace(text string) int {
	end := run(text, 0, space)
	if end == len(text) {
		return end
	}
	if _, last := utf8.DecodeLastRuneInString(text[:end]); last < end {
		return end - last
	}
	return end
}

var contractions = []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}

// contraction returns the length of a contraction such as 's at the beginning of text, in upper or
// lower case; 0 if there is none.
func contraction(text string) int {
	if text[0] != '\'' {
		return 0
	}
	for _, short := range contractions {
		end := 1
		for range len(short) - 1 {
			_, size := utf8.DecodeRuneInString(text[end:])
			end += size
		}
		if strings.EqualFold(text[:end], short) {
			return end
		}
	}
	return 0
}
