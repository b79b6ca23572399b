package query

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

const aRow = `{"messages":[{"role":"user","content":"What is 2 + 2?"},
 {"role":"assistant","content":null,"tool_calls":[{"id":"c1","function":{"name":"add"}}]},
 {"role":"tool","tool_call_id":"c1","content":"Four"}],
 "ground_truth":"4","score":0.75,"step":12,"big":9007199254740993,"draft":false,"note":null,
 "empty":"","none":[],"nothing":{},
 "tags":["red","round",3,true],"input":{"topic":"mathematics","deep":{"er":1}},"team-a":{"lead":"bob"},
 "created":"2026-03-01",
 "AND":"x","grid":[[{"k":1}],[{"k":2}]]}`

func TestRowFilterMatches(t *testing.T) {
	for _, c := range []struct {
		filter string
		want   bool
	}{
		{``, true},
		{`ground_truth = 4`, true},
		{`ground_truth = "4"`, true},
		{`ground_truth = 5`, false},
		{`ground_truth != 5`, true},
		{`ground_truth < 5`, true},
		{`score = 0.75`, true},
		{`score = 7.5e-1`, true},
		{`score > 0.5 AND score <= 0.75`, true},
		{`score >= 1`, false},
		{`score = many`, false},
		{`score != many`, true},
		{`score < many`, false},
		{`score < NaN`, false},
		{`score != NaN`, true},
		{`score:0.75`, true},
		{`step = 12`, true},
		{`step = 12.0`, true},
		{`step > -1`, true},
		{`big = 9007199254740993`, true},
		{`big = 9007199254740992`, false},
		{`draft = false`, true},
		{`draft = true`, false},
		{`draft != true`, true},
		{`draft < true`, false},
		{`draft:*`, true},
		{`note = null`, true},
		{`note != null`, false},
		{`note:*`, false},
		{`score = null`, false},
		{`absent = null`, false},
		{`absent != null`, true},
		{`absent = x`, false},
		{`absent != x`, true},
		{`absent > 0`, false},
		{`absent:*`, false},
		{`NOT absent:*`, true},
		{`-absent:*`, true},
		{`empty:*`, false},
		{`empty = ""`, true},
		{`none:*`, false},
		{`nothing:*`, false},
		{`input.topic = mathematics`, true},
		{`input.topic = math*`, true},
		{`input.topic = *m*ics`, true},
		{`input.topic = Math*`, false},
		{`input.topic:MATH`, true},
		{`input.topic:"m*cs"`, true},
		{`input.topic:bio`, false},
		{`input.topic > m`, true},
		{`input.topic.x = 1`, false},
		{`input.topic.x != 1`, true},
		{`input.deep.er = 1`, true},
		{`input."deep"."er" = 1`, true},
		{`input:deep`, true},
		{`input:deeper`, false},
		{`input = deep`, false},
		{`input:*`, true},
		{`"team-a".lead = bob`, true},
		{`"team-a":lead`, true},
		{`"score" > 0.5`, true},
		{`"absent thing":*`, false},
		{`created >= 2026-01-01`, true},
		{`tags:red`, true},
		{`tags:re`, false},
		{`tags:r*d`, true},
		{`tags:3`, true},
		{`tags:true`, true},
		{`tags:4`, false},
		{`tags = red`, false},
		{`tags != red`, true},
		{`tags:*`, true},
		{`messages.role:"tool"`, true},
		{`messages.role:system`, false},
		{`messages.role = tool`, false},
		{`messages.content:four`, true},
		{`messages.content:null`, true},
		{`messages.tool_calls:*`, true},
		{`messages.name:*`, false},
		{`messages.tool_calls.function.name:add`, true},
		{`messages.tool_calls.function.name:subtract`, false},
		{`messages:*`, true},
		{`grid.k:2`, true},
		{`grid.k:3`, false},
		{`ground_truth = (4 OR 5)`, true},
		{`ground_truth = (5 OR 6)`, false},
		{`score = 1 OR step = 12`, true},
		{`step = 12 AND (score = 1 OR draft = true)`, false},
		{`four`, true},
		{`"2 + 2"`, true},
		{`four mathematics`, true},
		{`four biology`, false},
		{`NOT biology`, true},
		{strings.Repeat("(", 64) + `step = 12` + strings.Repeat(")", 64), true},
	} {
		t.Run(clip(c.filter), func(t *testing.T) {
			matches, err := CompileRowFilter(c.filter)
			require.NoError(t, err)
			got, err := matches([]byte(aRow))
			require.NoError(t, err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestRowFilterErrors(t *testing.T) {
	for _, c := range []struct{ filter, says string }{
		{`score >`, `has a syntax error at character 8: it ends where a field, a word or a value is expected`},
		{`  score > AND`, `has a syntax error at character 11: AND is not expected here: write a field, a word or a value`},
		{`score = my-value AND (step = 2`, `has a syntax error at character 31: a closing parenthesis is expected here`},
		{`score = a-b x = c-d)`,
			`has a syntax error at character 20: ) is not expected here: write AND or OR, or end the filter`},
		{"näme = \"x", `has a syntax error at character 8: unterminated string`},
		{`now() > 5`, `the left side of > must be a field`},
		{`exists(score)`, `unknown function "exists"`},
		{`"" = x`, `the left side of = must be a field`},
		{strings.Repeat("(", 65) + `x` + strings.Repeat(")", 65), `is nested deeper than 64 parentheses`},
		{strings.Repeat("x", MaxFilter+1), `at most 4096 are allowed`},
	} {
		t.Run(clip(c.filter), func(t *testing.T) {
			_, err := CompileRowFilter(c.filter)
			require.ErrorContains(t, err, c.says)
			var f *domain.Error
			require.ErrorAs(t, err, &f)
			require.Equal(t, domain.InvalidArgument, f.Code)
			require.Equal(t, "filter", f.Violations[0].Field)
		})
	}
}

func TestRowFilterReadsObjectsOnly(t *testing.T) {
	matches, err := CompileRowFilter(`score > 0`)
	require.NoError(t, err)
	for _, c := range []struct{ row, says string }{
		{`[1]`, `the row must be a JSON object, not array`},
		{`null`, `the row must be a JSON object, not null`},
		{`{"score":`, `the row is not valid JSON`},
		{`{} {}`, `with nothing after it`},
		{``, `the row is not valid JSON`},
	} {
		_, err := matches([]byte(c.row))
		require.ErrorContains(t, err, c.says, c.row)
	}
}

func FuzzRowFilter(f *testing.F) {
	for _, seed := range []string{`messages.role:tool`, `a.b = (1 OR "x*") -c:*`, `"k-1".x < 5e3`, `((x`,
		`tags:3 AND note != null`} {
		f.Add(seed, aRow)
	}
	f.Add(`a:x`, `{"a":[[["x"]]]}`)
	f.Fuzz(func(t *testing.T, filter, row string) {
		matches, err := CompileRowFilter(filter)
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.NotContains(t, err.Error(), "\n")
			return
		}
		got, err := matches([]byte(row))
		if err != nil {
			require.False(t, json.Valid([]byte(row)) && strings.HasPrefix(strings.TrimSpace(row), "{"), row)
			return
		}
		// The negation of a valid filter is valid and has the opposite result.
		if not, err := CompileRowFilter(fmt.Sprintf("NOT (%s)", filter)); err == nil && strings.TrimSpace(filter) != "" {
			other, err := not([]byte(row))
			require.NoError(t, err)
			require.NotEqual(t, got, other, "%q and its negation agree on %s", filter, row)
		}
	})
}
