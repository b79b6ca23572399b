package train

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

const spokenTemplate = `{% for m in messages %}[{{ m.role }} speaks:] {{ m.content }};
{% endfor %}{% if add_generation_prompt %}[assistant speaks:] {% endif %}`

// A job's own chat template is what its rows are rendered by; it goes with the
// model that comes of it, and what goes on from that is rendered so too.
func TestAJobsChatTemplate(t *testing.T) {
	base, data := smallBase(t, 1), writeRows(t, "rows.jsonl", chatRows(8)...)
	train := func(adapter, template string, rank int) engines.TrainResult {
		t.Helper()
		result, err := Trainer{}.Train(t.Context(), engines.TrainOrder{Method: engines.Supervised, BaseDir: base, AdapterDir: adapter, DataFiles: []string{data},
			WorkDir: t.TempDir(), Seed: 3, Parallelism: 1, Settings: engines.TrainSettings{Epochs: 1, LoraRank: rank, JinjaTemplate: template}}, &recorder{t: t})
		require.NoError(t, err)
		return result
	}
	own := train("", "", 2)
	require.NoFileExists(t, filepath.Join(own.Dir, "chat_template.jinja"))
	for _, rank := range []int{2, 0} {
		given := train("", spokenTemplate, rank)
		require.Greater(t, given.Tokens, own.Tokens, "the template writes more than the model's own")
		kept, err := os.ReadFile(filepath.Join(given.Dir, "chat_template.jinja"))
		require.NoError(t, err)
		require.Equal(t, spokenTemplate, string(kept))
		if rank > 0 {
			require.Equal(t, given.Tokens, train(given.Dir, "", rank).Tokens)
			require.Equal(t, own.Tokens, train(own.Dir, "", rank).Tokens)
		}
	}

	_, err := Trainer{}.Train(t.Context(), engines.TrainOrder{Method: engines.Supervised, BaseDir: base, DataFiles: []string{data}, WorkDir: t.TempDir(), Parallelism: 1,
		Settings: engines.TrainSettings{Epochs: 1, LoraRank: 2, JinjaTemplate: "{% for m in messages %}"}}, &recorder{t: t})
	require.ErrorContains(t, err, "jinjaTemplate: ")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}
