package chat

import (
	"strings"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"anneal/domain"
)

// The constants limit a template's source, because gonja's parser recurses for each bracket and
// block, and its errors quote nested expressions.
const (
	maxSource  = 256 << 10 // bytes
	maxNesting = 100       // brackets and blocks
	maxTokens  = 4000      // tokens in one tag
)

// checkSource returns an error for a source whose size or nesting could exhaust the parser's
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

// nesting returns 1 for a statement that opens a block, -1 for a statement that closes one.
func nesting(statement string) int {
	switch {
	case strings.HasPrefix(statement, "end"):
		return -1
	case statement == "if", statement == "for", statement == "macro", statement == "with":
		return 1
	}
	// A set statement counts 0, because it seldom opens a block. Its endset counts -1 nevertheless,
	// which only lowers the sum.
	return 0
}
