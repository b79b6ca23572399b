"""Trains an adapter with reinforcement learning on a training service, like main.go.

It samples answers to sums in a wording that the base model was not trained on, rewards the correct ones,
and takes optimizer steps. It needs the package tinker.

    TINKER_BASE_URL=https://HANDLE.DOMAIN TINKER_API_KEY=tml-KEY python3 loop.py ACCOUNT/MODEL
"""

import random
import sys

import tinker
from tinker import types

BEGIN, ASSISTANT, END = 256, 258, 259  # the shipped base model reads bytes and tokens of a conversation
PROMPTS, SAMPLES, RATE = 32, 16, 2e-3


def ready(created):
    """Returns a client: newer versions of the package return a future of it."""
    return created.result() if hasattr(created, "result") else created


def tokens(message):
    return [BEGIN, *message.encode(), ASSISTANT]


def text(answer):
    """Returns the text of an answer, and None if it is not complete."""
    if END not in answer:
        return None
    return bytes(answer[: answer.index(END)]).decode(errors="replace") if max(answer[:-1], default=0) < 256 else None


def datum(prompt, sequence, advantage):
    """Returns the datum of a sample. Target i follows token i of the input, so the first targets are tokens
    of the prompt. Their advantage is 0, so they are not trained."""
    whole, begin = prompt + list(sequence.tokens), len(prompt) - 1
    return types.Datum(
        model_input=types.ModelInput.from_ints(whole[:-1]),
        loss_fn_inputs={
            "target_tokens": whole[1:],
            "logprobs": [0.0] * begin + list(sequence.logprobs),
            "advantages": [0.0] * begin + [advantage] * len(sequence.tokens),
        },
    )


def rollouts(sampler):
    """Returns a datum for each sample whose reward differs from the mean of its prompt, and the mean reward."""
    sums = [(random.randrange(100), random.randrange(100)) for _ in range(PROMPTS)]
    prompts = [tokens(f"Add {a} to {b}") for a, b in sums]
    params = types.SamplingParams(max_tokens=8, temperature=1.0)
    futures = [sampler.sample(types.ModelInput.from_ints(p), SAMPLES, params) for p in prompts]
    data, total = [], 0.0
    for (a, b), prompt, future in zip(sums, prompts, futures):
        sequences = future.result().sequences
        rewards = [float(text(list(s.tokens)) == str(a + b)) for s in sequences]
        mean = sum(rewards) / len(rewards)
        total += mean / PROMPTS
        data += [datum(prompt, s, r - mean) for s, r in zip(sequences, rewards) if r != mean]
    return data, total


def main(base_model, steps):
    random.seed(1)
    service = tinker.ServiceClient()
    model = ready(service.create_lora_training_client(base_model=base_model, rank=16, seed=1))
    for step in range(steps):
        sampler = ready(model.save_weights_and_get_sampling_client())
        data, reward = rollouts(sampler)
        print(f"step {step} reward {reward:.3f}", flush=True)
        if data:
            trained = model.forward_backward(data, "importance_sampling")
            stepped = model.optim_step(types.AdamParams(learning_rate=RATE))
            trained.result()
            stepped.result()
    print("saved", model.save_weights_for_sampler("final").result().path)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 40)
