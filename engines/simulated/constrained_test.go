package simulated_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

const orderSchema = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
	"required": ["customer", "lines", "tag"], "additionalProperties": {"type": "null"}, "properties": {
		"customer": {
			"type": "object", "required": ["name"], "additionalProperties": false,
			"properties": {
				"name": {"type": "string", "minLength": 2, "maxLength": 5},
				"kind": {"enum": ["person", "company"]}
			}
		},
		"lines": {
			"type": "array", "minItems": 1, "maxItems": 3,
			"items": {
				"type": "object", "required": ["count"],
				"properties": {"count": {"type": "integer", "minimum": 3, "maximum": 7}}
			}
		},
		"weight": {"type": ["number", "null"], "maximum": -2},
		"share": {"type": "number", "minimum": 0.25, "maximum": 0.75}, "urgent": {"type": "boolean"},
		"note": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "kind": {"const": "order"}, "any": true
	}}`

func requireValid(t *testing.T, schema, text string) {
	t.Helper()
	source, err := jsonschema.UnmarshalJSON(strings.NewReader(schema))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	require.NoError(t, c.AddResource("schema.json", source))
	compiled, err := c.Compile("schema.json")
	require.NoError(t, err)
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err, "%s", text)
	require.NoError(t, compiled.Validate(value), "%s", text)
}

func TestResponseFormats(t *testing.T) {
	m := load(t, simulated.Options{ContextLength: 4096})
	for seed := range uint64(50) {
		text, finish := "", ""
		req := engines.CompletionRequest{Prompt: "p", MaxTokens: 4000, Temperature: 1, Seed: &seed,
			Format: &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(orderSchema)}}
		record := func(c engines.Chunk) error {
			text, finish = text+c.Text, c.Finish
			require.Len(t, c.Tokens, 1)
			return nil
		}
		usage, err := m.Complete(t.Context(), req, record)
		require.NoError(t, err)
		requireValid(t, orderSchema, text)
		require.Equal(t, engines.FinishStop, finish)
		require.Equal(t, len([]rune(text)), usage.CompletionTokens)

		complete := text
		text, req.MaxTokens = "", 5
		_, err = m.Complete(t.Context(), req, record)
		require.NoError(t, err)
		require.Equal(t, string([]rune(complete)[:5]), text)
		require.Equal(t, engines.FinishLength, finish)

		text, req.MaxTokens, req.Format = "", 100, &engines.ResponseFormat{Type: engines.FormatJSON}
		_, err = m.Complete(t.Context(), req, record)
		require.NoError(t, err)
		requireValid(t, `{"type":"object"}`, text)

		text, req.Stop = "", []string{`":`}
		_, err = m.Complete(t.Context(), req, record)
		require.NoError(t, err)
		require.Equal(t, `{"word`, text)
		require.Equal(t, engines.FinishStop, finish)
	}
}

func TestUnsupportedSchemasAreRejected(t *testing.T) {
	m := load(t, simulated.Options{})
	for schema, message := range map[string]string{
		`{"type":"string","pattern":"a"}`:                            "#/pattern is not supported by a simulated model",
		`{"properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}`: "#/properties/a/$ref is not supported",
		`{"type":"integer","minimum":5,"maximum":4}`:                 "# allows no number",
		`{"type":"array","minItems":100000}`: "must have minItems from 0 to 1000, and maxItems " +
			"no smaller",
		`{"type":"text"}`: `has the unknown type "text": use one of the types of JSON Schema`,
		`false`:           "some value conforms to",
		`{`:               "is not JSON",
	} {
		_, err := m.Complete(t.Context(), engines.CompletionRequest{Prompt: "p", MaxTokens: 9,
			Format: &engines.ResponseFormat{Type: engines.FormatSchema, Schema: json.RawMessage(schema)}}, nil)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), schema)
		require.ErrorContains(t, err, message, schema)
		require.ErrorContains(t, err, "format", schema)
	}
}

func TestRequiredToolCalls(t *testing.T) {
	m := load(t, simulated.Options{ContextLength: 4096})
	tools := []json.RawMessage{json.RawMessage(`{"type":"function","function":{"name":"now"}}`),
		json.RawMessage(`{"type":"function","function":{"name":"order","parameters":` + orderSchema + `}}`)}
	call := func(choice engines.ToolChoice) (name, arguments, finish string, err error) {
		chat := &engines.Chat{Messages: []engines.Message{{Role: "user", Content: "go"}}, Tools: tools, ToolChoice: &choice}
		_, err = m.Complete(t.Context(), engines.CompletionRequest{MaxTokens: 4000, Chat: chat}, func(c engines.Chunk) error {
			require.Empty(t, c.Text)
			require.Len(t, c.ToolCalls, 1)
			name, arguments, finish = name+c.ToolCalls[0].Name, arguments+c.ToolCalls[0].Arguments, c.Finish
			return nil
		})
		return name, arguments, finish, err
	}
	name, arguments, finish, err := call(engines.ToolChoice{Name: "order"})
	require.NoError(t, err)
	require.Equal(t, []string{"order", engines.FinishToolCalls}, []string{name, finish})
	requireValid(t, orderSchema, arguments)
	name, arguments, _, err = call(engines.ToolChoice{})
	require.NoError(t, err)
	require.Equal(t, []string{"now", "{}"}, []string{name, arguments})
	_, _, _, err = call(engines.ToolChoice{Name: "other"})
	require.ErrorContains(t, err, `tools: has no function "other"`)
}
