package api

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// checkRows feeds the lines in pieces of a size, as an upload does.
func checkRows(format, text string, piece int) (domain.DatasetFacts, error) {
	k := newRowCheck(format)
	k.begin("f.jsonl")
	for len(text) > 0 {
		n := min(piece, len(text))
		_, _ = k.Write([]byte(text[:n])) // it keeps what is wrong to itself
		text = text[n:]
	}
	k.end()
	return k.verdict()
}

func TestRowsOfEveryShape(t *testing.T) {
	for _, c := range []struct {
		name, format, row string
		shape, found      string
	}{
		{"chat", "", `{"messages":[{"role":"system","content":"s"},{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`, domain.ShapeChat, "CHAT"},
		{"chat with tools", "CHAT", `{"messages":[{"role":"user","content":"u"},{"role":"assistant","tool_calls":[{}]},{"role":"tool","tool_call_id":"1","content":"t"},{"role":"assistant","content":"a","weight":0}],"tools":[{}]}`, domain.ShapeChat, "CHAT"},
		{"completion", "COMPLETION", `{"prompt":"p","completion":"c"}`, domain.ShapeCompletion, "COMPLETION"},
		{"text", "", `{"text":"t"}`, domain.ShapeCompletion, "COMPLETION"},
		{"preference", "", `{"input":{"messages":[{"role":"user","content":"u"}]},"preferred_output":[{"role":"assistant","content":"a"}],"non_preferred_output":[{"role":"assistant","content":"b"}]}`, domain.ShapePreference, "CHAT"},
		{"prompt", "", `{"messages":[{"role":"user","content":"u"}],"ground_truth":"x"}`, domain.ShapePrompt, "RL"},
		{"prompt asked for", "RL", `{"messages":[{"role":"user","content":"u"}],"ground_truth":[1]}`, domain.ShapePrompt, "RL"},
		{"samples", "RL", `{"samples":[{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}],"reward":0.5}]}`, domain.ShapeSamples, "RL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, end := range []string{"\n", "\r\n"} {
				for _, piece := range []int{1, 7, 1 << 20} {
					facts, err := checkRows(c.format, strings.Repeat(c.row+end, 3), piece)
					require.NoError(t, err)
					require.Equal(t, c.shape, facts.Shape)
					require.Equal(t, c.found, facts.Format)
					require.Equal(t, domain.Count(3), facts.ExampleCount)
					require.Positive(t, facts.EstimatedTokenCount)
				}
			}
		})
	}
}

func TestRowsThatAreWrong(t *testing.T) {
	const good = `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`
	for _, c := range []struct{ name, format, row, says string }{
		{"no JSON", "", `nope`, "must be one JSON object"},
		{"broken", "", `{"messages":[}`, "the row is not JSON"},
		{"no UTF-8", "", "{\"text\":\"\xff\"}", "not valid UTF-8"},
		{"nothing known", "", `{"question":"q"}`, "has neither messages"},
		{"other shape", "", `{"text":"t"}`, "completion row, but the first one is a chat row"},
		{"no messages", "", `{"messages":[]}`, "messages must not be empty"},
		{"last word", "", `{"messages":[{"role":"user","content":"u"}]}`, "the last of messages must be from the assistant"},
		{"system later", "", `{"messages":[{"role":"user","content":"u"},{"role":"system","content":"s"}]}`, "messages[1].role: system may only come first"},
		{"no content", "", `{"messages":[{"role":"user"},{"role":"assistant","content":"a"}]}`, "messages[0].content is required"},
		{"weight", "", `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a","weight":0.5}]}`, "messages[1].weight must be 0 or 1"},
		{"content's type", "", `{"messages":[{"role":"user","content":5}]}`, "messages.content must be text, not number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := checkRows(c.format, good+"\n"+good+"\n"+good+"\n"+c.row+"\n", 64)
			require.ErrorContains(t, err, c.says)
			require.ErrorContains(t, err, "f.jsonl line 4: ")
		})
	}
	_, err := checkRows("COMPLETION", strings.Repeat(good+"\n", 3), 64)
	require.ErrorContains(t, err, "of format CHAT, but the dataset asks for COMPLETION")
	_, err = checkRows("", `{"text":"a","prompt":"b"}`+"\n", 64)
	require.ErrorContains(t, err, "either text, or prompt and completion")
	_, err = checkRows("", `{"samples":[{"messages":[{"role":"assistant","content":"a"}],"reward":2}]}`+"\n", 64)
	require.ErrorContains(t, err, "samples[0].reward must be a number from 0 to 1")
	_, err = checkRows("", `{"samples":[{"messages":[{"role":"assistant","content":"a"}]}]}`+"\n", 64)
	require.ErrorContains(t, err, "has no metric")
}

func TestHowManyRows(t *testing.T) {
	_, err := checkRows("", strings.Repeat("{\"text\":\"t\"}\n", 2), 64)
	require.ErrorContains(t, err, "there are 2 rows")
	_, err = checkRows("", strings.Repeat("{\"text\":\"t\"}\n", 3)+"\n\n", 64)
	require.NoError(t, err, "empty lines may stand at the end")
	_, err = checkRows("", "{\"text\":\"t\"}\n{\"text\":\"t\"}\n{\"text\":\"t\"}", 64)
	require.NoError(t, err, "the last line needs no end")
	_, err = checkRows("", "", 64)
	require.ErrorContains(t, err, "there are 0 rows")
	_, err = checkRows("", strings.Repeat("nope\n", 103), 1000)
	require.ErrorContains(t, err, "f.jsonl line 100: ")
	require.NotContains(t, err.Error(), "line 101: ")
	require.ErrorContains(t, err, "3 more rows are wrong")
}

func TestRowsHaveALimit(t *testing.T) {
	row := func(n int) string { return `{"text":"` + strings.Repeat("x", n-len(`{"text":""}`)) + `"}` }
	rest := "\n{\"text\":\"t\"}\n{\"text\":\"t\"}\n"
	for _, piece := range []int{1 << 16, 1 << 30} {
		_, err := checkRows("", row(MaxRowBytes)+rest, piece)
		require.NoError(t, err)
		_, err = checkRows("", row(MaxRowBytes+1)+rest, piece)
		require.ErrorContains(t, err, fmt.Sprintf("f.jsonl line 1: the row is longer than %d bytes", MaxRowBytes))
	}
}

func FuzzRows(f *testing.F) {
	f.Add("CHAT", `{"messages":[{"role":"user","content":"u"},{"role":"assistant","content":"a"}]}`)
	f.Add("", "{\"samples\":[{\"messages\":null}]}\n\n{}")
	f.Fuzz(func(t *testing.T, format, text string) {
		facts, err := checkRows(format, text, 5)
		if err == nil && (facts.ExampleCount < MinRows || facts.Shape == "") {
			t.Fatalf("accepted %q as %+v", text, facts)
		}
		if err != nil && err.Error() == "" {
			t.Fatal("a refusal without a word")
		}
	})
}
