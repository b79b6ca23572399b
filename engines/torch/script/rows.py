"""Reads dataset rows as tokens with a loss mask."""

import json
import os


class TrainingError(Exception):
    """An error that the user must fix."""

    def __init__(self, message, code="INVALID_ARGUMENT"):
        super().__init__(message)
        self.code = code


def read_rows(files):
    """Yields (where, row) for each row of JSON Lines files. where is the file name and line, for error messages."""
    for path in files:
        with open(path, encoding="utf-8") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                where = f"{os.path.basename(path)} line {number}"
                try:
                    row = json.loads(line)
                except ValueError:
                    raise TrainingError(f"{where}: is not a JSON object; write one object per line")
                if not isinstance(row, dict):
                    raise TrainingError(f"{where}: is not a JSON object; write one object per line")
                yield where, row


def template_message(message):
    """Converts a message of a row for chat templates.

    Chat templates expect the arguments of tool calls as objects, but rows hold them as JSON text.
    """
    message = dict(message, content=message.get("content") or "")
    if message.get("tool_calls"):
        message["tool_calls"] = [
            dict(call, function=dict(call["function"], arguments=parse(call["function"]["arguments"])))
            for call in message["tool_calls"]]
    return message


def parse(text):
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


class Reader:
    """Converts rows to samples: tokens, and a loss mask that selects the tokens to learn."""

    def __init__(self, tokenizer, context_length):
        self.tokenizer, self.context_length = tokenizer, context_length
        if not tokenizer.is_fast:
            raise TrainingError("base model: has no tokenizer.json, which training requires: convert its tokenizer",
                                "FAILED_PRECONDITION")

    def render(self, messages, **options):
        try:
            messages = [template_message(m) for m in messages]
            return self.tokenizer.apply_chat_template(messages, tokenize=False, **options)
        except Exception as error:  # templates are programs and raise any exception
            raise TrainingError(f"messages: the model's chat template rejects this conversation: {error}")

    def check_rendered(self, text, messages, tools, **options):
        """Returns text, the rendered conversation. It raises an error if the template ignored tools or tool calls."""
        if tools and text == self.render(messages, **options):
            raise TrainingError("tools: this model's chat template does not render tools: leave them out, "
                                "or use a model that was trained with tools")
        without_calls = [{k: v for k, v in m.items() if k != "tool_calls"} for m in messages]
        if any(m.get("tool_calls") for m in messages) and text == self.render(without_calls, tools=tools, **options):
            raise TrainingError("messages: this model's chat template does not render tool_calls: "
                                "put them into the content")
        return text

    def spans(self, messages, tools=None):
        """Returns the text of a conversation, and the ranges of the text that the assistant wrote."""
        text, spans = self.check_rendered(self.render(messages, tools=tools), messages, tools), []
        for i, message in enumerate(messages):
            if message.get("role") != "assistant" or message.get("weight", 1) == 0:
                continue
            before = self.render(messages[:i], tools=tools, add_generation_prompt=True)
            after = self.render(messages[: i + 1], tools=tools)
            if not (text.startswith(before) and text.startswith(after)):
                raise TrainingError(f"messages[{i}]: the model's chat template renders the message differently when "
                                    "messages follow: make it the row's last message")
            spans.append((len(before), len(after)))
        return text, spans

    def encode(self, text, spans, special):
        coded = self.tokenizer(text, add_special_tokens=special, return_offsets_mapping=True)
        learned = [any(end > begin and first < end and last > begin for first, last in spans)
                   for begin, end in coded["offset_mapping"]]
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
                raise TrainingError("a row requires either messages, or prompt and completion, or text")
            return self.check_sample(tokens, learned)
        except TrainingError as error:
            raise TrainingError(f"{where}: {error}", error.code)

    def check_sample(self, tokens, learned):
        if len(tokens) > self.context_length:
            raise TrainingError(f"has {len(tokens)} tokens, more than the context length of {self.context_length}: "
                                "shorten the row, or raise maxContextLength")
        if not any(learned[1:]):
            raise TrainingError("has nothing to learn: give an assistant message weight 1, or a completion")
        return tokens, learned

    def pair(self, where, row):
        """Converts a preference row to two samples: the preferred response and the non-preferred response."""
        try:
            prompt, tools = row["input"]["messages"], row["input"].get("tools")
            responses = [row["preferred_output"], row["non_preferred_output"]]
        except (KeyError, TypeError, AttributeError):
            raise TrainingError(f"{where}: a preference row requires input.messages, preferred_output and "
                                "non_preferred_output")
        prompt = [dict(m, weight=0) for m in prompt]
        return [self.sample(where, {"messages": prompt + response, "tools": tools}) for response in responses]
