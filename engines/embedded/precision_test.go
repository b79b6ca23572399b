package embedded_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestConvertedModelsCompleteAlike sends prompts of the training tasks to the shipped model and to
// its copies in the precisions of :prepare. With greedy decoding, all answers must be equal in 16
// bits, and at least nine in ten in 8 bits.
func TestConvertedModelsCompleteAlike(t *testing.T) {
	var prompts []string
	for i, word := range []string{
		"harbour", "violin", "copper", "lantern", "meadow", "puzzle", "ribbon", "saddle", "tunnel", "walnut",
	} {
		prompts = append(
			prompts, fmt.Sprintf("Reverse the word %s.", word), fmt.Sprintf("Write %s in capital letters.", word),
			fmt.Sprintf("How many letters are in %s?", word),
			fmt.Sprintf("What is the last word of: red %s blue %s", word, word),
			fmt.Sprintf("What is %d + %d?", 17+7*i, 23+5*i), fmt.Sprintf("Positive or negative? The %s was great.", word))
	}
	dir := base(t)
	model := load(t, engines.ModelFiles{Dir: dir})
	want := make([]string, len(prompts))
	for i, prompt := range prompts {
		want[i], _ = complete(t, model, engines.CompletionRequest{Prompt: prompt})
	}
	for precision, minAlike := range map[string]int{
		"BF16": len(prompts), "FP16": len(prompts), "FP8": len(prompts) * 9 / 10,
	} {
		to := t.TempDir()
		convert(t, dir, to, precision)
		copied, alike := load(t, engines.ModelFiles{Dir: to}), 0
		for i, prompt := range prompts {
			if got, _ := complete(t, copied, engines.CompletionRequest{Prompt: prompt}); got == want[i] {
				alike++
			}
		}
		t.Logf("%s: %d of %d answers are alike", precision, alike, len(prompts))
		require.GreaterOrEqual(t, alike, minAlike, precision)
	}
}
