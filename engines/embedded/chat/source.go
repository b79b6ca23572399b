package chat

import (
	"strings"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"anneal/domain"
)

// Limits of the source of a template, because gonja's parser is recursive for brackets and blocks,
// and its errors quote whole expressions.
const (
	maxSource  = 256 << 10 // maximum size of a template in bytes
	maxNesting = 100       // maximum nesting of brackets and blocks
	maxTokens  = 4000      // maximum number of Jinja tokens in one tag
)

// checkSource returns an error for a template whose size or nesting could exhaust the parser's
// memory or stack.
func checkSource(source string, settings *config.Config) error {
	if len(source) > maxSource {
		return domain.Errorf(domain.FailedPrecondition, "the model's chat template has more than %d bytes", maxSource)
	}
	brackets, blocks, length := 0, 0, 0
	for stream := tokens.LexAll(source, settings); !stream.End(); {
		token := stream.Next()
		length++
		switch token.Type {
		case tokens.LeftParenthesis, tokens.LeftBracket, tokens.LeftBrace:
			brackets++
		case tokens.RightParenthesis, tokens.RightBracket, tokens.RightBrace:
			brackets--
		case tokens.VariableBegin, tokens.BlockBegin:
			brackets, length = 0, 0
			if next := stream.Current(); token.Type == tokens.BlockBegin && next != nil && next.Type == tokens.Name {
				blocks += nesting(next.Val)
			}
		}
		if max(brackets, blocks) > maxNesting || length > maxTokens {
			return domain.Errorf(domain.FailedPrecondition,
				"the model's chat template nests more than %d brackets or blocks, or has a tag of more than %d tokens",
				maxNesting, maxTokens)
		}
	}
	return nil
}

// nesting returns the change of the block depth by a statement: 1 if it opens a block, -1 if it
// closes one.
func nesting(statement string) int {
	switch {
	case strings.HasPrefix(statement, "end"):
		return -1
	case statement == "if", statement == "for", statement == "macro", statement == "with":
		return 1
	}
	// A set statement counts as 0, because it seldom opens a block. Its endset still counts as -1,
	// so the computed depth of a template can be too low, but never too high.
	return 0
}
