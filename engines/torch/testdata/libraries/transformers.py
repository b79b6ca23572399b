"""Stands in for transformers: a small model of bytes, with the functions that the training script calls."""

import json
import os
import types

import torch

if torch.__version__.startswith("1."):  # its reader of weights accepts no numbers, which optimizers have
    _load = torch.load
    torch.load = lambda file, map_location, weights_only: _load(file, map_location=map_location)


class Tokenizer:
    """A token is a byte; the end of a text is the token 0."""

    is_fast, eos_token_id = True, 0

    def __call__(self, text, add_special_tokens=False, return_offsets_mapping=False):
        return {"input_ids": list(text.encode()), "offset_mapping": [(i, i + 1) for i in range(len(text))]}


class AutoTokenizer:
    @staticmethod
    def from_pretrained(directory, local_files_only):
        return Tokenizer()


class Model(torch.nn.Module):
    """Predicts each token from the token before. TORCH_STUB_FAILS is the rank and the call that fails, as "1:5"."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.calls = 0
        self.config = types.SimpleNamespace(use_cache=True, max_position_embeddings=128)
        self.embedding, self.head = torch.nn.Embedding(256, 16), torch.nn.Linear(16, 256)

    def forward(self, input_ids, attention_mask):
        self.calls += 1
        if os.environ.get("TORCH_STUB_FAILS") == f"{os.environ.get('RANK')}:{self.calls}":
            raise RuntimeError("CUDA out of memory")
        return types.SimpleNamespace(logits=self.head(self.embedding(input_ids)))

    def save_pretrained(self, directory, safe_serialization):
        os.makedirs(directory, exist_ok=True)
        sums = {name: p.double().sum().item() for name, p in self.named_parameters()}
        with open(os.path.join(directory, "sums.json"), "w", encoding="utf-8") as f:
            json.dump(sums, f)


class AutoModelForCausalLM:
    @staticmethod
    def from_pretrained(directory, dtype, local_files_only):
        return Model()
