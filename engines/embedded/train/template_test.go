package train

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
)

const spokenTemplate = `{% for m in messages %}[{{ m.role }} speaks:] {{ m.content }};
{% endfor %}{% if add_generation_prompt %}[assistant speaks:] {% endif %}`

// TestJobChatTemplate checks that a job's chat template renders the rows of the job, is stored
// with the result, and is used by jobs that continue from the result.
func TestJobChatTemplate(t *testing.T) {
	base, data := smallBase(t, 1), writeRows(t, "rows.jsonl", chatRows(8)...)
	train := func(adapter, template string, rank int) engines.TrainResult {
		t.Helper()
		result := mustTrain(t, engines.TrainRequest{
			Method: engines.Supervised, BaseDir: base, AdapterDir: adapter, DataFiles: []string{data},
			WorkDir: t.TempDir(), Seed: 3, Parallelism: 1,
			Settings: engines.TrainSettings{Epochs: 1, LoraRank: rank, JinjaTemplate: template},
		}, &recorder{t: t})
		return result
	}
	own := train("", "", 2)
	require.NoFileExists(t, filepath.Join(own.Dir, "chat_template.jinja"))
	for _, rank := range []int{2, 0} {
		given := train("", spokenTemplate, rank)
		require.Greater(t, given.Tokens, own.Tokens, "the template writes more than the model's own")
		kept := testutil.ReadFile(t, filepath.Join(given.Dir, "chat_template.jinja"))
		require.Equal(t, spokenTemplate, string(kept))
		if rank > 0 {
			require.Equal(t, given.Tokens, train(given.Dir, "", rank).Tokens)
			require.Equal(t, own.Tokens, train(own.Dir, "", rank).Tokens)
		}
	}

	_, err := Trainer{}.Train(
		t.Context(), engines.TrainRequest{
			Method: engines.Supervised, BaseDir: base, DataFiles: []string{data}, WorkDir: t.TempDir(), Parallelism: 1,
			Settings: engines.TrainSettings{Epochs: 1, LoraRank: 2, JinjaTemplate: "{% for m in messages %}"},
		}, &recorder{t: t})
	require.ErrorContains(t, err, "jinjaTemplate: ")
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}

const toolTemplate = `{% for tool in tools %}<{{ tool.function.name }}>{% endfor %}` +
	`{% for m in messages %}{{ m.role[0] }}:{{ m.content }}` +
	`{% for call in m.tool_calls %}{{ call.function.name }}({{ call.function.arguments.x }}){% endfor %};{% endfor %}` +
	`{% if add_generation_prompt %}a:{% endif %}`

// TestToolsInRows checks that rows of every kind are rendered with their tools, and that tool
// calls are targets in the syntax of serving.
func TestToolsInRows(t *testing.T) {
	const (
		tools    = `"tools":[{"type":"function","function":{"name":"clock"}}]`
		question = `{"role":"user","content":"When?"}`
		call     = `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function",` +
			`"function":{"name":"clock","arguments":"{\"x\": 7}"}}]}`
		result = `{"role":"tool","tool_call_id":"1","content":"Noon."}`
		answer = `{"role":"assistant","content":"At noon."}`
	)
	base := smallBase(t, 1)
	for name, c := range map[string]struct {
		method, row string
		want        []string // rendered samples or prompts, with targets in brackets
	}{
		"supervised": {engines.Supervised, `{` + tools + `,"messages":[` + strings.Join(
			[]string{question, call, result, answer}, ",") + `]}`,
			[]string{"<clock>u:When?;a:[clock(7);]t:Noon.;a:[At noon.;]"}},
		"preferences": {
			engines.DPO,
			`{"input":{` + tools + `,"messages":[` + question + `]},"preferred_output":[` + call +
				`],"non_preferred_output":[` + answer + `]}`,
			[]string{"<clock>u:When?;a:[clock(7);]", "<clock>u:When?;a:[At noon.;]"},
		},
		"prompts": {engines.Reinforcement, `{` + tools + `,"messages":[` + strings.Join(
			[]string{question, call, result, question}, ",") + `]}`,
			[]string{"<clock>u:When?;a:clock(7);t:Noon.;u:When?;a:"}},
		"samples": {
			engines.RLOR,
			`{"samples":[{"messages":[` + question + `,` + call + `],"m":1},{"messages":[` + question + `,` + answer +
				`],"m":0}]}`,
			[]string{"u:When?;a:[clock(7);]", "u:When?;a:[At noon.;]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j, err := newJob(
				t.Context(), engines.TrainRequest{
					Method: c.method, BaseDir: base, DataFiles: []string{writeRows(t, "rows.jsonl", c.row)}, WorkDir: t.TempDir(),
					Parallelism: 1,
					Evaluation:  letterEvaluator{},
					Settings:    engines.TrainSettings{LoraRank: 2, JinjaTemplate: toolTemplate},
				}, &recorder{t: t})
			require.NoError(t, err)
			defer j.metrics.Close()
			require.Equal(t, c.want, j.rendered())
		})
	}
}

// rendered returns the text of the samples or prompts of a job, with targets in brackets.
func (j *job) rendered() (all []string) {
	decode := func(s *Sample) {
		text, on := "", false
		for i, id := range s.Tokens {
			if s.Scored[i] != on {
				text, on = text+map[bool]string{true: "[", false: "]"}[s.Scored[i]], s.Scored[i]
			}
			text += j.tokens.Decode([]int{int(id)})
		}
		if on {
			text += "]"
		}
		all = append(all, text)
	}
	switch c := j.procedure.(type) {
	case *rollouts:
		for _, p := range c.prompts {
			all = append(all, j.tokens.Decode(p.tokens))
		}
	case *fixedSamples:
		for _, s := range c.plan.samples {
			decode(s)
			if s.Rejected != nil {
				decode(s.Rejected)
			}
		}
	}
	return all
}
