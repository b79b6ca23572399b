package chat

import (
	"strings"

	"github.com/nikolalohinski/gonja/v2/config"
	"github.com/nikolalohinski/gonja/v2/tokens"

	"anneal/domain"
)

// Limits of a template's source. gonja's parser recurses for each bracket and block, and its
// errors quote nested expressions.
const (
	maxSource  = 256 << 10 // bytes
	maxNesting = 100       // brackets and blocks
	maxTokens  = 4000      // of one tag
)

// checkSource rejects a source that the parser might not survive.
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

// nesting is 1 for a statement that opens a block, -1 for one that closes it.
func nesting(statement string) int {
	switch {
	case strings.HasPrefix(statement, "end"):
		return -1
	case statement == "if", statement == "for", statement == "macro", statement == "with":
		return 1
	}
	return 0 // includes set, which rarely opens a block; its end still counts
}
