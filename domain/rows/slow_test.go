package rows

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"unicode/utf8"

	"anneal/domain"
)

// slow is a second, simple implementation of the rules for rows, with encoding/json. The differential
// tests compare the fast reader with it.
type slow struct {
	shape   string
	bytes   int
	turns   int
	reasons []string
}

type member struct {
	name  string
	value json.RawMessage
}

func slowly(line []byte, hint string) (s slow) {
	var raw json.RawMessage
	switch {
	case !utf8.Valid(line):
		return slow{reasons: []string{"the line is not valid UTF-8"}}
	case json.Unmarshal(line, &raw) != nil, bytes.TrimLeft(line, " \t\r\n")[0] != '{':
		return slow{reasons: []string{explainInvalid(line)}}
	}
	row := s.members("", raw, rowNames)
	text, prompt, completion := row["text"], row["prompt"], row["completion"]
	texts := text != nil || prompt != nil || completion != nil
	switch {
	case row["messages"] != nil:
		s.conversation(row, hint)
	case row["preferred_output"] != nil || row["non_preferred_output"] != nil || row["input"] != nil && !texts:
		s.preference(row)
	case row["samples"] != nil:
		s.samples(row["samples"])
	case text != nil:
		s.shape, s.turns = domain.ShapeCompletion, 1
		for _, other := range []string{"prompt", "completion"} {
			s.check(row[other] == nil, other+" cannot be combined with text: use prompt and completion, or text")
		}
		s.learnt("text", text)
	case texts:
		s.shape, s.turns = domain.ShapeCompletion, 1
		s.text("prompt", prompt, true)
		s.learnt("completion", completion)
	default:
		s.check(false, "the row has none of the fields messages, prompt, completion, text, input and samples")
	}
	if len(s.reasons) > 0 && row["messages"] == nil && row["samples"] == nil {
		for _, name := range unknownFields(line) {
			s.check(false, "unknown field "+name)
		}
	}
	return s
}

func (s *slow) check(holds bool, reason string) bool {
	if !holds {
		s.reasons = append(s.reasons, reason)
	}
	return holds
}

// all returns the members of an object in order, read with encoding/json.
func all(object json.RawMessage) (found []member) {
	d := json.NewDecoder(bytes.NewReader(object))
	_, _ = d.Token()
	for d.More() {
		name, err := d.Token()
		var value json.RawMessage
		if err != nil || d.Decode(&value) != nil {
			panic(fmt.Sprintf("%s: %v", object, err)) // the caller has checked that the object is valid JSON
		}
		found = append(found, member{name.(string), value})
	}
	return found
}

// members returns the values of the named members; nil for absent and null ones.
func (s *slow) members(path string, object json.RawMessage, names []string) map[string]json.RawMessage {
	known := map[string]json.RawMessage{}
	times := map[string]int{}
	for _, m := range all(object) {
		if times[m.name]++; times[m.name] == 1 && slices.Contains(names, m.name) {
			known[m.name] = m.value
			if string(m.value) == "null" {
				known[m.name] = nil
			}
		}
	}
	twice := false
	for _, name := range names {
		twice = twice || times[name] > 1
	}
	s.check(!twice, path+" twice")
	return known
}

func (s *slow) text(path string, value json.RawMessage, counts bool) (text string) {
	switch {
	case value == nil:
		s.check(false, path+" is missing; it must be a string")
	case json.Unmarshal(value, &text) != nil:
		s.check(false, path+" must be a string")
	case counts:
		s.bytes += len(text)
	}
	return text
}

func (s *slow) learnt(path string, value json.RawMessage) {
	if text := s.text(path, value, true); text == "" && value != nil && value[0] == '"' {
		s.check(false, path+" must not be empty")
	}
}

func (s *slow) list(path string, value json.RawMessage) (elements []json.RawMessage, ok bool) {
	if value == nil {
		return nil, true
	}
	return elements, s.check(json.Unmarshal(value, &elements) == nil, path+" must be a list")
}

func (s *slow) messages(path string, value json.RawMessage) (last string, n int) {
	elements, ok := s.list(path, value)
	if ok {
		s.check(len(elements) > 0, path+" must not be empty")
	}
	for i, element := range elements {
		last = s.message(fmt.Sprintf("%s[%d]", path, i), i, element)
	}
	return last, len(elements)
}

func (s *slow) message(path string, index int, value json.RawMessage) string {
	if !s.check(value[0] == '{', path+" must be a JSON object") {
		return ""
	}
	m := s.members(path, value, messageNames)
	role := s.role(path+".role", index, m["role"])
	calls, _ := s.list(path+".tool_calls", m["tool_calls"])
	for i, call := range calls {
		s.function(fmt.Sprintf("%s.tool_calls[%d]", path, i), call, true)
	}
	s.check(len(calls) == 0 || role == "assistant" || role == "",
		path+".tool_calls are allowed only in messages of role assistant")
	if m["content"] != nil || len(calls) == 0 || role != "assistant" {
		s.text(path+".content", m["content"], true)
	}
	id := ""
	if m["tool_call_id"] != nil {
		id = s.text(path+".tool_call_id", m["tool_call_id"], false)
	}
	if role == "tool" && id == "" && (m["tool_call_id"] == nil || m["tool_call_id"][0] == '"') {
		s.check(false, path+".tool_call_id is missing: a message of role tool must have the ID of the tool call "+
			"that it answers")
	}
	if m["name"] != nil {
		s.text(path+".name", m["name"], false)
	}
	if w := m["weight"]; w != nil {
		var weight float64
		s.check(json.Unmarshal(w, &weight) == nil && (weight == 0 || weight == 1), path+".weight must be 0 or 1")
	}
	if role == "user" || role == "assistant" {
		s.turns++
	}
	return role
}

func (s *slow) role(path string, index int, value json.RawMessage) (role string) {
	if value != nil && !s.check(json.Unmarshal(value, &role) == nil, path+" must be a string") {
		return ""
	}
	switch role {
	case "user", "assistant", "tool":
		return role
	case "system":
		s.check(index == 0, path+": only the first message may have the role system")
		return role
	case "":
		s.check(false, path+" is missing; it must be system, user, assistant or tool")
	default:
		s.check(false, fmt.Sprintf("%s %q must be system, user, assistant or tool", path, clip(role)))
	}
	return ""
}

func (s *slow) function(path string, value json.RawMessage, call bool) {
	if !s.check(value[0] == '{', path+" must be a JSON object") {
		return
	}
	names := []string{"type", "function"}
	if call {
		names = append(names, "id")
	}
	m := s.members(path, value, names)
	if call {
		s.filled(path+".id", m["id"])
	}
	if kind := s.text(path+".type", m["type"], false); m["type"] != nil && m["type"][0] == '"' {
		s.check(kind == "function", path+`.type must be "function"`)
	}
	switch path += ".function"; {
	case m["function"] == nil:
		s.check(false, path+" is missing; it must be an object")
		return
	case !s.check(m["function"][0] == '{', path+" must be an object"):
		return
	}
	f := s.members(path, m["function"], functionNames)
	s.filled(path+".name", f["name"])
	if call {
		if text := s.text(path+".arguments", f["arguments"], true); f["arguments"] != nil && f["arguments"][0] == '"' {
			s.check(json.Valid([]byte(text)), path+".arguments must be a string that holds JSON")
		}
		return
	}
	if f["description"] != nil {
		s.text(path+".description", f["description"], false)
	}
	s.check(f["parameters"] == nil || f["parameters"][0] == '{', path+".parameters must be an object")
}

func (s *slow) filled(path string, value json.RawMessage) {
	if text := s.text(path, value, false); text == "" && value != nil && value[0] == '"' {
		s.check(false, path+" must not be empty")
	}
}

func (s *slow) conversation(row map[string]json.RawMessage, hint string) {
	last, _ := s.messages("messages", row["messages"])
	s.tools("tools", row["tools"])
	s.shape = domain.ShapeChat
	if hint == domain.ShapePrompt || hint != domain.ShapeChat && last == "user" {
		s.shape = domain.ShapePrompt
		s.check(last == "user" || last == "", "messages: the last message of a prompt row must be of role user")
		return
	}
	s.check(last == "assistant" || last == "", "messages: the last message of a chat row must be of role assistant")
	for _, other := range []string{"text", "prompt", "completion"} {
		s.check(row[other] == nil, other+" cannot be combined with messages: leave one of them out")
	}
}

func (s *slow) tools(path string, value json.RawMessage) {
	tools, _ := s.list(path, value)
	for i, tool := range tools {
		s.function(fmt.Sprintf("%s[%d]", path, i), tool, false)
	}
}

func (s *slow) preference(row map[string]json.RawMessage) {
	s.shape = domain.ShapePreference
	if input := row["input"]; input == nil {
		s.check(false, "input is missing; it must hold messages")
	} else if s.check(input[0] == '{', "input must be an object that holds messages") {
		m := s.members("input", input, inputNames)
		s.messages("input.messages", m["messages"])
		s.tools("input.tools", m["tools"])
	}
	for _, side := range []string{"preferred_output", "non_preferred_output"} {
		if !s.check(row[side] != nil && row[side][0] == '[', side+" must hold one message of role assistant") {
			continue
		}
		last, n := s.messages(side, row[side])
		if n > 1 {
			s.check(false, fmt.Sprintf("%s must hold one message of role assistant, not %d", side, n))
		} else {
			s.check(last == "assistant" || last == "", side+"[0].role must be assistant")
		}
	}
}

func (s *slow) samples(value json.RawMessage) {
	s.shape = domain.ShapeSamples
	elements, ok := s.list("samples", value)
	if ok {
		s.check(len(elements) > 0, "samples must not be empty")
	}
	var metrics []string // metrics of the first sample, which every sample must have
	first := true
	for i, element := range elements {
		path := fmt.Sprintf("samples[%d]", i)
		if !s.check(element[0] == '{', path+" must be a JSON object") {
			continue
		}
		metrics = s.sample(path, element, metrics, first)
		first = false
	}
}

func (s *slow) sample(path string, element json.RawMessage, metrics []string, first bool) []string {
	var messages json.RawMessage
	times := map[string]int{}
	for _, m := range all(element) {
		if times[m.name]++; m.name == "messages" {
			if s.check(times[m.name] == 1, path+".messages is given twice") && string(m.value) != "null" {
				messages = m.value
			}
			continue
		}
		if !s.check(m.name != "", path+" has a metric without a name") {
			continue
		}
		name := path + "." + clip(m.name)
		switch known := slices.Contains(metrics, m.name); {
		case !known && first && len(metrics) < MaxMetrics:
			metrics = append(metrics, m.name)
		case !known && first:
			s.check(false, name+" exceeds the limit of 64 metrics")
		case !known:
			s.check(false, name+" is not a metric of the first sample: all samples need the same metrics")
		default:
			s.check(times[m.name] == 1, name+" is given twice")
		}
		score := -1.0
		s.check(json.Unmarshal(m.value, &score) == nil && score >= 0 && score <= 1,
			name+" must be a number from 0 to 1")
	}
	s.check(len(metrics) > 0, path+" has no metric: a sample must have messages and at least one number from 0 to 1")
	for _, name := range metrics {
		s.check(times[name] > 0, path+"."+clip(name)+" is missing; all samples need the metrics of the first sample")
	}
	s.messages(path+".messages", messages)
	return metrics
}
