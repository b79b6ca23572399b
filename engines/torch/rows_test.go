package torch

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// readRows has the script's reader read rows, with a tokenizer of single
// characters. It prints what is learned of each in brackets, or what is wrong.
const readRows = `
import json, sys
sys.path.insert(0, "script")
sys.dont_write_bytecode = True
from rows import Fault, Reader

class Tokenizer:
    is_fast, eos_token_id = True, 0

    def __init__(self, shows):
        self.shows = shows

    def apply_chat_template(self, messages, tokenize, tools=None, add_generation_prompt=False):
        text = "".join(f"<{t['function']['name']}>" for t in (tools or []) if self.shows)
        for m in messages:
            calls = m.get("tool_calls") if self.shows else None
            text += m["role"][0] + ":" + m["content"] + "".join(f"{c['function']['name']}({c['function']['arguments']['x']})" for c in calls or []) + ";"
        return text + ("a:" if add_generation_prompt else "")

    def __call__(self, text, add_special_tokens, return_offsets_mapping):
        return {"input_ids": [ord(c) for c in text], "offset_mapping": [(i, i + 1) for i in range(len(text))]}

def shown(tokens, learned):
    text, on = "", False
    for token, wanted in zip(tokens, learned):
        text, on = text + ("[" if wanted > on else "]" if wanted < on else "") + chr(token), wanted
    return text + ("]" if on else "")

reader = Reader(Tokenizer(sys.argv[1] == "shows"), 1000)
row = json.loads(sys.argv[2])
try:
    samples = reader.pair("here", row) if "input" in row else [reader.sample("here", row)]
    print("\n".join(shown(*s) for s in samples))
except Fault as fault:
    print(fault)
`

// Rows show the model what it may call, and calls are learned as it is asked for
// them; a template that passes over them is told of.
func TestToolsInRows(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed: apt install python3")
	}
	const (
		tools  = `"tools":[{"type":"function","function":{"name":"clock"}}]`
		asked  = `{"role":"user","content":"When?"}`
		called = `{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"clock","arguments":"{\"x\": 7}"}}]}`
		told   = `{"role":"tool","tool_call_id":"1","content":"Noon."}`
		said   = `{"role":"assistant","content":"At noon."}`
	)
	pair := `{"input":{` + tools + `,"messages":[` + asked + `]},"preferred_output":[` + called + `],"non_preferred_output":[` + said + `]}`
	for _, c := range []struct{ template, row, want string }{
		{"shows", `{` + tools + `,"messages":[` + asked + `,` + called + `,` + told + `,` + said + `]}`, "<clock>u:When?;a:[clock(7);]t:Noon.;a:[At noon.;]\n"},
		{"shows", pair, "<clock>u:When?;a:[clock(7);]\n<clock>u:When?;a:[At noon.;]\n"},
		{"hides", `{` + tools + `,"messages":[` + asked + `,` + said + `]}`, "here: tools: this model's chat template has no place for tools: leave them out, or use a model that was trained with tools\n"},
		{"hides", `{"messages":[` + asked + `,` + called + `]}`, "here: messages: this model's chat template has no place for tool_calls: tell of them in the content\n"},
		{"hides", `{"messages":[` + asked + `,` + said + `],"tools":[]}`, "u:When?;a:[At noon.;]\n"},
	} {
		out, err := exec.Command(python, "-c", readRows, c.template, c.row).CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, c.want, string(out))
	}
}
