package inference

import (
	"fmt"
	"strings"

	"anneal/api/wire"
	"anneal/engines"
)

// maxResponseText is the maximum size of a text in a request to the Responses API, in bytes. It is
// larger than any body, so that only the limit of the body applies.
const maxResponseText = 16 << 20

// items returns the messages of the conversation in the field input: a text, or a list of items.
// Consecutive items of the assistant (reasoning, text and function calls) become one message.
func (f responseReader) items() []engines.Message {
	value, given := f.values["input"]
	if !given {
		f.add("input", "is required: a text, or a list of items")
		return nil
	}
	if text, isText := value.(string); isText {
		return []engines.Message{{Role: "user", Content: text}}
	}
	_, isList := value.([]any)
	if !isList {
		f.add("input", "must be a text, or a list of items, not %s", wire.KindName(value))
		return nil
	}
	list := f.list("input", maxMessages)
	f.require(len(list) > 0, "input", "must not be an empty list: send at least one item")
	var messages []engines.Message
	for i, one := range list {
		at := fmt.Sprintf("input[%d]", i)
		object, ok := one.(map[string]any)
		if f.require(ok, at, "must be an object with a type, or with role and content, not %s", wire.KindName(one)); !ok {
			continue
		}
		messages = f.item(messages, at, object)
	}
	return messages
}

// item converts an item of the input to a message. It appends the message to messages, or its
// contents to the last message, and returns the messages. path is the path of the item.
func (f responseReader) item(messages []engines.Message, path string, object map[string]any) []engines.Message {
	kind, _ := object["type"].(string)
	switch {
	case kind == "message" || object["type"] == nil:
		in := f.nested(path, object, set("type", "id", "status", "role", "content", "phase"))
		role := in.enum("role", "user", "assistant", "system", "developer")
		in.require(in.given("role"), "role", "is required: user, assistant, system or developer")
		in.require(in.given("content"), "content", "is required: text, or a list of parts")
		parts, hasImage := in.parts("content", role == "user")
		if hasImage {
			return append(messages, engines.Message{Role: role, Parts: parts})
		}
		text := textOf(parts)
		if last := assistant(messages); role == "assistant" && last != nil && last.Content == "" &&
			len(last.ToolCalls) == 0 {
			last.Content = text
			return messages
		}
		return append(messages, engines.Message{Role: role, Content: text})
	case kind == "function_call":
		in := f.nested(path, object, set("type", "id", "status", "call_id", "name", "arguments"))
		call := engines.ToolCall{ID: in.text("call_id", 256), Name: in.text("name", 256),
			Arguments: in.text("arguments", maxResponseText)}
		in.require(call.ID != "", "call_id", "is required: the ID of the function call")
		in.require(call.Name != "", "name", "is required: the name of the function")
		if assistant(messages) == nil {
			messages = append(messages, engines.Message{Role: "assistant"})
		}
		last := assistant(messages)
		call.Index = len(last.ToolCalls)
		last.ToolCalls = append(last.ToolCalls, call)
		return messages
	case kind == "function_call_output":
		in := f.nested(path, object, set("type", "id", "status", "call_id", "output"))
		id := in.text("call_id", 256)
		in.require(id != "", "call_id", "is required: the call_id of the function call whose result this is")
		in.require(in.given("output"), "output", "is required: the result of the function call")
		return append(messages, engines.Message{Role: "tool", ToolCallID: id, Content: in.joinedParts("output")})
	case kind == "reasoning":
		in := f.nested(path, object, set("type", "id", "status", "summary", "content", "encrypted_content"))
		text := in.joinedParts("content")
		if text == "" {
			text = in.joinedParts("summary")
		}
		return append(messages, engines.Message{Role: "assistant", Reasoning: text})
	case kind == "item_reference":
		f.add(path, "must not refer to a stored item, because responses are not stored: send the item itself, as clients do "+
			"when store is false")
	default:
		f.add(path+".type", "%s is not supported: send message, function_call, function_call_output or reasoning",
			wire.Quote(kind))
	}
	return messages
}

// assistant returns the last message if its role is assistant, otherwise nil.
func assistant(messages []engines.Message) *engines.Message {
	if n := len(messages); n > 0 && messages[n-1].Role == "assistant" {
		return &messages[n-1]
	}
	return nil
}

// joinedParts returns the text of the field name, which is a text or a list of text parts. It
// concatenates the parts.
func (f responseReader) joinedParts(name string) string {
	parts, _ := f.parts(name, false)
	return textOf(parts)
}

func textOf(parts []engines.Part) string {
	var all strings.Builder
	for _, part := range parts {
		all.WriteString(part.Text)
	}
	return all.String()
}

// parts returns the parts of the field name, which is a text or a list of text parts and, if images
// is true, image parts. hasImage reports whether one of them is an image.
func (f responseReader) parts(name string, images bool) (parts []engines.Part, hasImage bool) {
	list, isList := f.values[name].([]any)
	if !isList {
		return []engines.Part{{Text: f.text(name, maxResponseText)}}, false
	}
	for i, one := range list {
		part, _ := one.(map[string]any)
		at := fmt.Sprintf("%s[%d]", name, i)
		kind, _ := part["type"].(string)
		field := "text"
		switch kind {
		case "input_text", "output_text", "text", "reasoning_text", "summary_text":
		case "refusal":
			field = "refusal"
		case "input_image":
			f.require(images, at, "is an image, which only messages with the role user may have: move the image to one")
			parts, hasImage = append(parts, engines.Part{Image: f.inputImage(at, part)}), true
			continue
		default:
			f.add(at+".type", "%s is not supported: send parts of the type input_text or input_image; files and audio are "+
				"not supported", wire.Quote(kind))
			continue
		}
		text, isText := part[field].(string)
		f.require(isText, at+"."+field, "must be text, not %s", wire.KindName(part[field]))
		parts = append(parts, engines.Part{Text: text})
	}
	return parts, hasImage
}

// inputImage returns the image in a part of the type input_image; path is the path of the part.
func (f responseReader) inputImage(path string, part map[string]any) *engines.Image {
	in := f.nested(path, part, set("type", "image_url", "file_id", "detail"))
	in.enum("detail", "auto", "low", "high")
	if in.given("file_id") {
		in.add("file_id", "is not supported: send the image in image_url, as an http or https URL or a data: URL")
		return nil
	}
	return readImage(in.fieldReader, "image_url", in.text("image_url", maxResponseText))
}
