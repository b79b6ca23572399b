package torch

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// readRows converts rows with the script's reader and a tokenizer of single characters. It prints
// the text of each sample with the learned parts in brackets, or the error.
const readRows = `
import json, sys
sys.path.insert(0, "script")
sys.dont_write_bytecode = True
from rows import Reader, TrainingError

class Tokenizer:
    is_fast, eos_token_id = True, 0

    def __init__(self, has_tools):
        self.has_tools = has_tools

    def apply_chat_template(self, messages, tokenize, tools=None, add_generation_prompt=False):
        text = "".join(f"<{t['function']['name']}>" for t in (tools or []) if self.has_tools)
        for m in messages:
            calls = m.get("tool_calls") if self.has_tools else None
            functions = [c["function"] for c in calls or []]
            rendered = "".join(f"{f['name']}({f['arguments']['x']})" for f in functions)
            text += m["role"][0] + ":" + m["content"] + rendered + ";"
        return text + ("a:" if add_generation_prompt else "")

    def __call__(self, text, add_special_tokens, return_offsets_mapping):
        return {"input_ids": [ord(c) for c in text], "offset_mapping": [(i, i + 1) for i in range(len(text))]}

def bracketed(tokens, learned):
    text, inside = "", False
    for token, is_learned in zip(tokens, learned):
        text += ("[" if is_learned > inside else "]" if is_learned < inside else "") + chr(token)
        inside = is_learned
    return text + ("]" if inside else "")

reader = Reader(Tokenizer(sys.argv[1] == "tools"), 1000)
row = json.loads(sys.argv[2])
try:
    samples = reader.pair("here", row) if "input" in row else [reader.sample("here", row)]
    print("\n".join(bracketed(*s) for s in samples))
except TrainingError as error:
    print(error)
`

// TestToolsInRows checks that the samples of a row contain its tools, and that its tool calls
// are learned. Rows with tools or tool calls that the chat template does not render are
// rejected.
func TestToolsInRows(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: apt install python3")
	}
	const (
		tools    = `"tools":[{"type":"function","function":{"name":"clock"}}]`
		question = `{"role":"user","content":"When?"}`
		call     = `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":` +
			`{"name":"clock","arguments":"{\"x\": 7}"}}]}`
		result = `{"role":"tool","tool_call_id":"1","content":"Noon."}`
		answer = `{"role":"assistant","content":"At noon."}`
	)
	pair := `{"input":{` + tools + `,"messages":[` + question + `]},"preferred_output":[` + call +
		`],"non_preferred_output":[` + answer + `]}`
	for _, c := range []struct{ template, row, want string }{
		{"tools", `{` + tools + `,"messages":[` + question + `,` + call + `,` + result + `,` + answer + `]}`,
			"<clock>u:When?;a:[clock(7);]t:Noon.;a:[At noon.;]\n"},
		{"tools", pair, "<clock>u:When?;a:[clock(7);]\n<clock>u:When?;a:[At noon.;]\n"},
		{"noTools", `{` + tools + `,"messages":[` + question + `,` + answer + `]}`,
			"here: tools: this model's chat template does not render tools: leave them out, or use a model that was " +
				"trained with tools\n"},
		{"noTools", `{"messages":[` + question + `,` + call + `]}`,
			"here: messages: this model's chat template does not render tool_calls: put them into the content\n"},
		{"noTools", `{"messages":[` + question + `,` + answer + `],"tools":[]}`, "u:When?;a:[At noon.;]\n"},
	} {
		out, err := exec.Command(python, "-c", readRows, c.template, c.row).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.want, string(out))
	}
}
