package rows_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/domain/rows"
)

const good = `{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`

func check(t *testing.T, format, text string) (domain.DatasetStats, []string) {
	t.Helper()
	c := rows.NewChecker(format)
	require.NoError(t, c.Read("data.jsonl", strings.NewReader(text)))
	facts, faults, _ := c.Result()
	var lines []string
	for _, f := range faults {
		lines = append(lines, f.String())
	}
	return facts, lines
}

func TestErrorsHaveLines(t *testing.T) {
	_, faults := check(t, "", strings.Join([]string{good, good, `{"messages":[{"role":`,
		`{"messages":[{"content":"a"},{"role":"assistant","content":"b"}]}`, good}, "\n"))
	require.Equal(t, []string{
		"data.jsonl:3: not valid JSON at byte 21: unexpected end of JSON input",
		"data.jsonl:4: messages[0].role is missing; it must be system, user, assistant or tool",
	}, faults)
}

func TestShapesAndFormats(t *testing.T) {
	three := func(line string) string { return strings.Repeat(line+"\n", 3) }
	for name, c := range map[string]struct{ format, line, shape, found string }{
		"chat":       {"", good, domain.ShapeChat, domain.FormatChat},
		"completion": {"", `{"prompt":"a","completion":"b"}`, domain.ShapeCompletion, domain.FormatCompletion},
		"text":       {"", `{"text":"b"}`, domain.ShapeCompletion, domain.FormatCompletion},
		"preference": {"", `{"input":{"messages":[{"role":"user","content":"q"}]},"preferred_output":[{"role":"assis` +
			`tant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]}`,
			domain.ShapePreference, domain.FormatChat},
		"prompts": {"", `{"messages":[{"role":"user","content":"q"}],"ground_truth":"x"}`, domain.ShapePrompt,
			domain.FormatRL},
		"samples": {"", `{"samples":[{"messages":[{"role":"user","content":"q"}],"score":1}]}`, domain.ShapeSamples,
			domain.FormatRL},
		"asked for prompt": {"RL", `{"messages":[{"role":"user","content":"q"}]}`, domain.ShapePrompt, domain.FormatRL},
	} {
		t.Run(name, func(t *testing.T) {
			facts, faults := check(t, c.format, three(c.line))
			require.Empty(t, faults)
			require.Equal(t, c.shape, facts.Shape)
			require.Equal(t, c.found, facts.Format)
			require.EqualValues(t, 3, facts.ExampleCount)
		})
	}
}

func TestErrors(t *testing.T) {
	for name, c := range map[string]struct{ format, text, fault string }{
		"too few": {"", good, "dataset: has 1 row, but must have at least 3"},
		"empty":   {"", "", "dataset: has 0 rows, but must have at least 3"},
		"two shapes": {"", good + "\n" + good + "\n" + good + "\n" + `{"text":"x"}`,
			"data.jsonl:4: the row is a completion row, but the previous rows are chat rows: use one shape per dataset"},
		"other format": {"COMPLETION", good + "\n" + good + "\n" + good,
			"data.jsonl:1: the row has format CHAT, but the dataset has format COMPLETION: correct the row, or create " +
				"another dataset"},
		"ends with user": {"CHAT", good + "\n" + good + "\n" + `{"messages":[{"role":"user","content":"q"}]}`,
			"data.jsonl:3: messages: the last message of a chat row must be of role assistant"},
		"late system": {"", good + "\n" + good + "\n" +
			`{"messages":[{"role":"user","content":"q"},{"role":"system","content":"s"},{"role":"assistant","content":"a"}]}`,
			"data.jsonl:3: messages[1].role: only the first message may have the role system"},
		"weight": {"", good + "\n" + good + "\n" +
			`{"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a","weight":0.5}]}`,
			"data.jsonl:3: messages[1].weight must be 0 or 1"},
		"content": {"", good + "\n" + good + "\n" +
			`{"messages":[{"role":"user"},{"role":"assistant","content":"a"}]}`,
			"data.jsonl:3: messages[0].content is missing; it must be a string"},
		"not an object": {"", good + "\n" + good + "\n[1]", "data.jsonl:3: must be a JSON object"},
		"blank lines too": {"", good + "\n\n" + good + "\n\n{",
			"data.jsonl:5: not valid JSON at byte 1: unexpected end of JSON input"},
		"bad UTF-8": {"", good + "\n" + good + "\n\"\xff\"", "data.jsonl:3: the line is not valid UTF-8"},
		"too long": {"", good + "\n" + strings.Repeat("x", rows.MaxLine+1) + "\n" + good + "\n" + good,
			"data.jsonl:2: the line is longer than 8 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			_, faults := check(t, c.format, c.text)
			require.Equal(t, []string{c.fault}, faults)
		})
	}
}

func TestErrorsAreLimited(t *testing.T) {
	c := rows.NewChecker("")
	require.NoError(t, c.Read("f", strings.NewReader(strings.Repeat("{\n", 150))))
	_, faults, more := c.Result()
	require.Len(t, faults, rows.MaxErrors)
	require.Equal(t, 50, more)
	require.Contains(t, rows.InvalidRows(faults, more).Message, "and 50 more")
}
