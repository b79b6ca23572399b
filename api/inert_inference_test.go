package api

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/domain"
)

// inertInference has requests for each entry of the table of inert fields whose operation generates
// text. A key is OPERATION PATH WHEN, and the value has the fields of the request. A key that
// begins with "!" belongs to a request for which the condition of the entry does not hold.
var inertInference = map[string]string{
	"createCompletion stream_options without stream": `"stream_options": {"include_usage": true}`,
	"!createCompletion stream_options": `"stream_options": {"include_usage": true}, ` +
		`"stream": true`,
	"createCompletion speculation with prediction":         `"speculation": "a", "prediction": "a"`,
	"!createCompletion speculation":                        `"speculation": "a"`,
	"createCompletion speculation " + onServers:            `"speculation": "a"`,
	"createCompletion prediction " + onServers:             `"prediction": "a"`,
	"createChatCompletion speculation " + onServers:        `"speculation": "a"`,
	"createChatCompletion prediction " + onServers:         `"prediction": "a"`,
	"createCompletion speculation " + draftless:            `"speculation": "a"`,
	"createCompletion prediction " + draftless:             `"prediction": "a"`,
	"!createCompletion prediction":                         `"prediction": "a"`,
	"createCompletion mirostat_lr without mirostat_target": `"mirostat_lr": 0.5`,
	"!createCompletion mirostat_lr":                        `"mirostat_lr": 0.5, "mirostat_target": 2`,
	"createCompletion reasoning_history":                   `"reasoning_history": "preserved"`,
	"createChatCompletion reasoning_history without reasoning_content in the messages": `"messages": [{"role": "user", ` +
		`"content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}], ` +
		`"reasoning_history": "interleaved"`,
	"!createChatCompletion reasoning_history": `"messages": [{"role": "user", "content": "a"}, {"role": "assistant", ` +
		`"content": "b", "reasoning_content": "r"}, {"role": "user", "content": "c"}], "reasoning_history": "disabled"`,
	"createChatCompletion stream_options without stream":       `"stream_options": {"include_usage": true}`,
	"createChatCompletion speculation with prediction":         `"speculation": "a", "prediction": "a"`,
	"createChatCompletion speculation " + draftless:            `"speculation": "a"`,
	"createChatCompletion prediction " + draftless:             `"prediction": "a"`,
	"createChatCompletion mirostat_lr without mirostat_target": `"mirostatLr": 0.5`,
	"createChatCompletion messages.refusal": `"messages": [{"role": "user", "content": "a"}, {"role": "assistant", ` +
		`"content": "b", "refusal": "no"}, {"role": "user", "content": "c"}]`,
	"createChatCompletion messages.content.image_url.detail unless it is auto": `"messages": [{"role": "user", ` +
		`"content": [` + imagePart(pixel, "high") + `]}]`,
	"!createChatCompletion messages.content.image_url.detail": `"messages": [{"role": "user", "content": [` +
		imagePart(pixel, "auto") + `]}]`,
	"createResponse include with a value other than message.output_text.logprobs": `"include": ` +
		`["message.output_text.logprobs", "reasoning.encrypted_content"]`,
	"!createResponse include": `"include": ["message.output_text.logprobs"]`,
	"createResponse input.encrypted_content": `"input": [{"type": "reasoning", "summary": [], ` +
		`"encrypted_content": "x"}, ` +
		`{"role": "user", "content": "a"}]`,
	"createResponse input.content.detail unless it is auto": `"input": [{"role": "user", "content": [` +
		inputImage(pixel, "high") + `]}]`,
	"!createResponse input.content.detail": `"input": [{"role": "user", "content": [` +
		inputImage(pixel, "auto") + `]}]`,
	"createResponse max_tool_calls":                            `"max_tool_calls": 3`,
	"createResponse reasoning.generate_summary":                `"reasoning": {"generate_summary": "auto"}`,
	"createResponse reasoning.summary":                         `"reasoning": {"summary": "auto"}`,
	"createResponse service_tier unless it is auto or default": `"service_tier": "priority"`,
	"!createResponse service_tier":                             `"service_tier": "auto"`,
	"createResponse stream_options.include_obfuscation":        `"streamOptions": {"includeObfuscation": true}`,
	"createResponse text.verbosity unless it is medium":        `"text": {"verbosity": "low"}`,
	"!createResponse text.verbosity":                           `"text": {"verbosity": "medium"}`,
	"!createResponse stream_options.include_obfuscation":       `"stream_options": {"include_obfuscation": false}`,
	"!createResponse max_tool_calls":                           `"store": false`,
	"!createChatCompletion mirostat_lr":                        `"mirostat_lr": 0.5, "mirostat_target": 2`,
}

const draftless = "on a deployment that was created with disableSpeculativeDecoding"

const onServers = "on nodes with the engine vllm, llama.cpp or openai"

// inferencePaths has the path and the required field of the operations that generate text.
var inferencePaths = map[string][2]string{
	"createCompletion":     {"/inference/v1/completions", `"prompt": "a"`},
	"createChatCompletion": {"/inference/v1/chat/completions", `"messages": [{"role": "user", "content": "a"}]`},
	"createResponse":       {"/inference/v1/responses", `"input": "a"`},
}

// TestInertFieldsOfInferenceAreWarnedOf enumerates the entries of the table of inert fields for the
// operations that generate text, and checks the warnings of a request for each of them.
func TestInertFieldsOfInferenceAreWarnedOf(t *testing.T) {
	s := servingHarness(t, 1)
	s.deploy("draftless", 1, func(spec *domain.DeploymentSpec) { spec.DisableSpeculativeDecoding = true })
	s.deploySeer()
	s.do(registerEngines("accounts/system/nodes/server", domain.EngineAbility("vllm")))
	s.deploy("served", 1)
	s.deployment("accounts/acme/deployments/served", domain.PlaceReplica{ID: "r2", Node: "accounts/system/nodes/server",
		Generation: 1})
	missing := map[string]inert.Field{}
	for operation := range inferencePaths {
		for _, f := range inert.Of(operation) {
			key := operation + " " + f.Path
			if !f.Always() {
				key += " " + f.When.Text
			}
			missing[key] = f
		}
	}
	for key, fields := range inertInference {
		var want []string
		if f, ok := missing[key]; ok {
			want = []string{f.Warning()}
			delete(missing, key)
		} else {
			require.True(t, strings.HasPrefix(key, "!"), "%s: is not in the table", key)
		}
		operation, _, _ := strings.Cut(strings.TrimPrefix(key, "!"), " ")
		at := inferencePaths[operation]
		model := "accounts/acme/deployments/d1"
		if strings.HasSuffix(key, draftless) {
			model = "accounts/acme/deployments/draftless"
		}
		if strings.HasSuffix(key, onServers) {
			model = "accounts/acme/deployments/served"
		}
		if strings.Contains(fields, "image") {
			model = "accounts/acme/deployments/seer"
		}
		required, _, _ := strings.Cut(at[1], ":")
		if !strings.Contains(fields, required+":") {
			fields += ", " + at[1]
		}
		a := s.call("POST", at[0], "user", `{"model": "`+model+`", `+fields+`}`)
		require.Equal(t, 200, a.status, "%s: %s", key, a.body)
		require.Equal(t, want, a.header.Values(request.WarningHeader), key)
	}
	require.Empty(t, missing, "no request sets these fields of the table")
}

// TestInertWarningsComeFromTheTable checks that no package of the API writes a warning that a field
// has no effect, except from the table of inert fields.
func TestInertWarningsComeFromTheTable(t *testing.T) {
	calls := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Warn" {
				return true
			}
			calls++
			ast.Inspect(call, func(n ast.Node) bool {
				if text, ok := n.(*ast.BasicLit); ok && text.Kind == token.STRING {
					value, err := strconv.Unquote(text.Value)
					require.NoError(t, err)
					require.NotRegexp(t, `effect|ignored by|not used`, value, path)
				}
				return true
			})
			return true
		})
		return err
	}))
	require.Greater(t, calls, 10)
}
