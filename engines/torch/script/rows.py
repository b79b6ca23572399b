"""Rows of data, as tokens and which of them are learned."""

import json
import os


class Fault(Exception):
    """What the user must mend."""

    def __init__(self, message, code="INVALID_ARGUMENT"):
        super().__init__(message)
        self.code = code


def read_rows(files):
    """Yields (where, row) of JSON Lines files."""
    for path in files:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{os.path.basename(path)} line {number}"
                try:
                    row = json.loads(line)
                except ValueError:
                    raise Fault(f"{where}: is not a JSON object; write one object a line")
                if not isinstance(row, dict):
                    raise Fault(f"{where}: is not a JSON object; write one object a line")
                yield where, row


def known(message):
    """A message as templates know it: the arguments of calls are objects, which rows hold as text."""
    message = dict(message, content=message.get("content") or "")
    if message.get("tool_calls"):
        message["tool_calls"] = [dict(call, function=dict(call["function"], arguments=parsed(call["function"]["arguments"]))) for call in message["tool_calls"]]
    return message


def parsed(text):
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


class Reader:
    """Turns rows into samples: tokens, and which of them are learned."""

    def __init__(self, tokenizer, window):
        self.tokenizer, self.window = tokenizer, window
        if not tokenizer.is_fast:
            raise Fault("base model: its tokenizer has no tokenizer.json, which training needs: convert it", "FAILED_PRECONDITION")

    def render(self, messages, **options):
        try:
            return self.tokenizer.apply_chat_template([known(m) for m in messages], tokenize=False, **options)
        except Exception as error:  # a template is a program, and says in any way that it refuses
            raise Fault(f"messages: the model's chat template refuses them: {error}")

    def shown(self, text, messages, tools, **options):
        """A conversation that was rendered as text, if that has its tools and calls: a template may pass over them."""
        if tools and text == self.render(messages, **options):
            raise Fault("tools: this model's chat template has no place for tools: leave them out, or use a model that was trained with tools")
        silent = [{k: v for k, v in m.items() if k != "tool_calls"} for m in messages]
        if any(m.get("tool_calls") for m in messages) and text == self.render(silent, tools=tools, **options):
            raise Fault("messages: this model's chat template has no place for tool_calls: tell of them in the content")
        return text

    def spans(self, messages, tools=None):
        """A conversation as text, and the ranges of it that are the assistant's."""
        text, spans = self.shown(self.render(messages, tools=tools), messages, tools), []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or message.get("weight", 1) == 0:
                continue
            before = self.render(messages[:i], tools=tools, add_generation_prompt=True)
            after = self.render(messages[: i + 1], tools=tools)
            if not (text.startswith(before) and text.startswith(after)):
                raise Fault(f"messages[{i}]: the model's chat template renders it otherwise when more follows: make it the row's last")
            spans.append((len(before), len(after)))
        return text, spans

    def encode(self, text, spans, special):
        coded = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        learned = [any(end > begin and first < end and last > begin for first, last in spans) for begin, end in coded["offset_mapping"]]
        return coded["input_ids"], learned

    def sample(self, where, row):
        eos = self.tokenizer.eos_token_id
        try:
            if "messages" in row:
                text, spans = self.spans(row["messages"], row.get("tools"))
                tokens, learned = self.encode(text, spans, special=False)
            elif "text" in row:
                tokens, learned = self.encode(row["text"], [(0, len(row["text"]))], special=True)
                tokens, learned = tokens + [eos], learned + [True]
            elif "prompt" in row and "completion" in row:
                text, cut = row["prompt"] + row["completion"], len(row["prompt"])
                tokens, learned = self.encode(text, [(cut, len(text))], special=True)
                tokens, learned = tokens + [eos], learned + [True]
            else:
                raise Fault("a row has either messages, or prompt and completion, or text")
            return self.checked(tokens, learned)
        except Fault as fault:
            raise Fault(f"{where}: {fault}", fault.code)

    def checked(self, tokens, learned):
        if len(tokens) > self.window:
            raise Fault(f"has {len(tokens)} tokens, more than the {self.window} that fit: shorten it, or raise maxContextLength")
        if not any(learned[1:]):
            raise Fault("has nothing to learn: give an assistant message weight 1, or a completion")
        return tokens, learned

    def pair(self, where, row):
        """A preference row as two samples: the answer to prefer, and the other."""
        try:
            prompt, tools = row["input"]["messages"], row["input"].get("tools")
            answers = [row["preferred_output"], row["non_preferred_output"]]
        except (KeyError, TypeError, AttributeError):
            raise Fault(f"{where}: a preference row has input.messages, preferred_output and non_preferred_output")
        return [self.sample(where, {"messages": [dict(m, weight=0) for m in prompt] + answer, "tools": tools}) for answer in answers]
