package embedded_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// forms holds schemas to which short texts conform.
var forms = []string{
	`{"type":"object","properties":{"name":{"type":"string","minLength":1,` +
		`"maxLength":8},"age":{"type":"integer","minimum":0,"maximum":130}},` +
		`"required":["name","age"],"additionalProperties":false}`,
	`{"type":"array","items":{"enum":["red","green",3,null]},"minItems":1,"maxItems":4}`,
	`{"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},` +
		`"at":{"format":"date"}},"required":["kind","at"]},{"type":"object",` +
		`"properties":{"kind":{"const":"b"},"x":{"type":"number","minimum":0,"maximum":1}},"required":["kind","x"]}]}`,
	`{"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{"v":{"type":"boolean"},` +
		`"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},"required":["v","next"]}}}`,
	`{"type":"string","pattern":"^[A-Z]{2}-\\d{3}$"}`,
	`{"type":"object","additionalProperties":{"type":"boolean"},"properties":{"id":{"format":"uuid"}},"required":["id"]}`,
	`{"allOf":[{"type":"object","properties":{"a":{"type":"string",` +
		`"maxLength":3}},"required":["a"]},{"properties":{"b":{"type":["null","boolean"]}},"required":["b"]}]}`,
}

// TestTheBaseConforms requests answers in the format of each schema, and in JSON, from the shipped
// model, with unrelated prompts and several temperatures. Each answer must conform to the format or
// be cut off by the token limit, and more than half must be complete.
func TestTheBaseConforms(t *testing.T) {
	m := load(t, engines.ModelFiles{Dir: base(t)})
	n := uint64(10_000)
	if testing.Short() {
		n = 300
	}
	var schemas []*jsonschema.Schema
	for i, form := range forms {
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		source, err := jsonschema.UnmarshalJSON(strings.NewReader(form))
		require.NoError(t, err)
		name := fmt.Sprintf("%d.json", i)
		require.NoError(t, c.AddResource(name, source))
		s, err := c.Compile(name)
		require.NoError(t, err)
		schemas = append(schemas, s)
	}
	var group sync.WaitGroup
	var mu sync.Mutex
	whole := uint64(0)
	slots := make(chan struct{}, 32)
	for seed := range n {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			i := int(seed) % (len(forms) + 1)
			f := &engines.ResponseFormat{Type: engines.FormatJSON}
			if i < len(forms) {
				f = &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(forms[i])}
			}
			text, finish := completeText(t, m,
				engines.CompletionRequest{Prompt: "\x00\xff%$ }}]] capital of " + fmt.Sprint(seed),
					MaxTokens: 120, Temperature: float64(seed%5) / 2, Seed: &seed, Format: f})
			if finish == engines.FinishLength {
				return
			}
			value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
			if assert.NoError(t, err, "%q", text) && i < len(forms) {
				assert.NoError(t, schemas[i].Validate(value), "%q", text)
			}
			mu.Lock()
			whole++
			mu.Unlock()
		})
	}
	group.Wait()
	t.Logf("%d of %d answers were complete", whole, n)
	require.Greater(t, whole, n/2)
}

func completeText(t *testing.T, m engines.Model, req engines.CompletionRequest) (text, finish string) {
	var all strings.Builder
	_, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		all.WriteString(c.Text)
		finish = c.Finish
		return nil
	})
	assert.NoError(t, err)
	return all.String(), finish
}
