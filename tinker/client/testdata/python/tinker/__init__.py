"""A stand-in for the package tinker with the few calls of the examples, on Python's standard library.

It sends the JSON forms of requests, and reads the JSON forms of results, which older clients use.
"""

import json
import os
import urllib.request

from . import types

BASE = os.environ["TINKER_BASE_URL"].rstrip("/") + "/api/v1/"
KEY = os.environ["TINKER_API_KEY"]


def call(operation, /, **body):
    request = urllib.request.Request(BASE + operation, json.dumps(body).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    request.add_header("X-API-Key", KEY)
    if "TINKER_HOST" in os.environ:  # the host name of a service that does not resolve
        request.add_header("Host", os.environ["TINKER_HOST"])
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


class Future:
    def __init__(self, submitted, read=lambda result: result):
        self.request_id, self.read = submitted["request_id"], read

    def result(self):
        while True:
            result = call("retrieve_future", request_id=self.request_id, allow_metadata_only=False)
            if result.get("type") == "try_again":
                continue
            if "error" in result:
                raise RuntimeError(result["error"])
            return self.read(result)


class ServiceClient:
    def __init__(self):
        if not KEY.startswith("tml-"):
            raise ValueError("the key must begin with tml-")
        call("client/config", sdk_version="0.25.0")
        self.session = call("create_session", tags=[], user_metadata=None, sdk_version="0.25.0")["session_id"]
        self.models = self.samplers = 0

    def create_lora_training_client(self, base_model, rank=32, seed=None):
        config = {"rank": rank, "seed": seed, "train_mlp": True, "train_attn": True, "train_unembed": True}
        created = Future(call("create_model", session_id=self.session, model_seq_id=self.models, base_model=base_model,
                              lora_config=config, type="create_model")).result()
        self.models += 1
        return TrainingClient(self, created["model_id"])


class TrainingClient:
    def __init__(self, service, model):
        self.service, self.model, self.seq = service, model, 0

    def submit(self, operation, **body):
        self.seq += 1
        return call(operation, model_id=self.model, seq_id=self.seq, **body)

    def forward_backward(self, data, loss_fn):
        body = {"data": [d.json() for d in data], "loss_fn": loss_fn, "loss_fn_config": None}
        return Future(self.submit("forward_backward", forward_backward_input=body))

    def optim_step(self, params):
        return Future(self.submit("optim_step", adam_params=params.json(), type="optim_step"))

    def save_weights_for_sampler(self, name):
        return Future(self.submit("save_weights_for_sampler", path=name), lambda r: types.Record(**r))

    def save_weights_and_get_sampling_client(self):
        number = self.service.samplers
        self.service.samplers += 1
        saved = Future(self.submit("save_weights_for_sampler", sampling_session_seq_id=number)).result()
        return SamplingClient(saved["sampling_session_id"])


class SamplingClient:
    def __init__(self, session):
        self.session, self.seq = session, 0

    def sample(self, prompt, num_samples, sampling_params):
        submitted = call("asample", sampling_session_id=self.session, seq_id=self.seq, prompt=prompt.json(),
                         num_samples=num_samples, sampling_params=sampling_params.json(), topk_prompt_logprobs=0,
                         type="sample")
        self.seq += 1
        return Future(submitted, lambda r: types.Record(sequences=[types.Record(**s) for s in r["sequences"]]))
