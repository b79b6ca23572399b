"""Types of the stand-in for the package tinker."""


class Record:
    def __init__(self, **fields):
        self.__dict__.update(fields)

    def json(self):
        return dict(self.__dict__)


class AdamParams(Record):
    pass


class SamplingParams(Record):
    pass


class ModelInput:
    def __init__(self, tokens):
        self.tokens = list(tokens)

    @classmethod
    def from_ints(cls, tokens):
        return cls(tokens)

    def json(self):
        return {"chunks": [{"tokens": self.tokens, "type": "encoded_text"}]}


class Datum:
    def __init__(self, model_input, loss_fn_inputs):
        self.model_input, self.inputs = model_input, loss_fn_inputs

    def json(self):
        inputs = {}
        for name, values in self.inputs.items():
            dtype = "int64" if name == "target_tokens" else "float32"
            inputs[name] = {"data": values, "dtype": dtype, "shape": [len(values)]}
        return {"model_input": self.model_input.json(), "loss_fn_inputs": inputs}
