"""Reinforcement learning from scored rollouts."""

import math

import torch
import torch.distributed as dist

from model import assign, copied, log_probs
from rows import TrainingError
from training import PATIENCE, RANK, WORLD, Training

MIN_FLAT_ROWS = 200  # consecutive rows without a reward difference after which a training run stops


class Reinforcement(Training):
    """GRPO (Shao et al., 2024): rollouts of the policy, scored by the parent process.

    Each rollout is used for one step only. It is therefore sampled from the current
    policy, so no probability ratio needs clipping.
    """

    loss_metric = "train/loss"
    first = None  # the initial trained parameters, for the KL term

    def read_samples(self, files):
        """Returns samples (tokens, loss mask, row, number of the row)."""
        return [(*sample, number) for number, sample in enumerate(super().read_samples(files), 1)]

    def sample(self, where, row):
        messages = row.get("messages")
        if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
            raise TrainingError(f"{where}: a prompt row requires messages that end with a user message")
        options = {"tools": row.get("tools"), "add_generation_prompt": True}
        text = self.reader.check_rendered(self.reader.render(messages, **options), messages, **options)
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) >= self.context_length:
            raise TrainingError(f"{where}: has {len(tokens)} tokens and fills the context length of "
                                f"{self.context_length}: shorten it")
        return tokens, [True] * len(tokens), row

    def __init__(self, request, parent, device, stop):
        super().__init__(request, parent, device, stop)
        loss = self.s.get("loss") or {}
        self.beta = 0.04 if loss.get("klBeta") is None else loss["klBeta"]
        self.by_token, self.by_sequence = loss.get("method") == "DAPO", loss.get("method") == "GSPO_TOKEN"
        if self.by_token or self.by_sequence:
            self.beta = 0.0
        self.rollouts = self.s.get("rollouts") or {}
        self.candidates = self.rollouts.get("responseCandidatesCount") or 4
        self.expected = float(len(self.samples) * self.candidates * (self.s["epochs"] or 1))

    def prepare(self):
        self.first = copied(self.trained)

    def method_state(self):
        return {**super().method_state(), "first": self.first}

    def load_method_state(self, saved):
        super().load_method_state(saved)
        self.first = saved["first"]

    def generate(self, sample, n):
        """Returns n rollouts of one row as samples (tokens, loss mask), and their texts."""
        r, prompt = self.rollouts, sample[0]
        max_tokens = min(r.get("maxOutputTokens") or 2048, self.context_length - len(prompt))
        self.model.eval()
        with torch.no_grad():
            out = self.model.generate(
                input_ids=torch.tensor([prompt], device=self.device),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self.device),
                do_sample=True, temperature=r.get("temperature") or 0.7, top_p=r.get("topP") or 1.0,
                top_k=r.get("topK") or 0, use_cache=True, max_new_tokens=max_tokens, num_return_sequences=n,
                eos_token_id=self.tokenizer.eos_token_id, pad_token_id=self.tokenizer.eos_token_id)
        rollouts = []
        for row in out[:, len(prompt) :].tolist():
            end = row.index(self.tokenizer.eos_token_id) + 1 if self.tokenizer.eos_token_id in row else len(row)
            rollouts.append((prompt + row[:end], [False] * len(prompt) + [True] * end))
        texts = [self.tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True) for tokens, _ in rollouts]
        return rollouts, texts

    def batches(self, planned):
        """Generates the rollouts of a step and has them scored. Each process generates those of its own rows."""
        mine = [i for batch in planned for i in batch[RANK::WORLD]]
        generated = {i: self.generate(self.samples[i], self.candidates) for i in mine}
        rows = [row for i in mine for row in with_responses(self.samples[i], generated[i][1])]
        own, scores = self.score_all(rows, step=self.state["step"] + 1, evaluation=False)
        self.group = {}
        for i in mine:
            rollouts = generated[i][0]
            self.group[i], own = advantages(rollouts, own[: len(rollouts)]), own[len(rollouts) :]
        good = [s["value"] for s in scores if s["valid"]]
        if scores and not good:
            reason = scores[0].get("reason") or "none was given"
            raise TrainingError(f"evaluator: returned no valid score for any of {len(scores)} rollouts; "
                                f"the first reason is: {reason}", "FAILED_PRECONDITION")
        self.has_signal = self.sum([float(any(self.group.values()))])[0] > 0
        masks = [learned for i in mine for _, learned in generated[i][0]]  # True for the tokens of the response
        generated_tokens = self.sum([float(sum(sum(learned) for learned in masks))])[0]
        prompt_tokens = self.sum([float(sum(len(learned) - sum(learned) for learned in masks))])[0]
        self.counts = add_counts(self.state.get("rollouts"), done=len(scores), failed=len(scores) - len(good),
                                 rows=sum(len(batch) for batch in planned), tokens=int(generated_tokens),
                                 prompt_tokens=int(prompt_tokens))
        self.metrics = {"reward/mean": sum(good) / max(len(good), 1), "reward/valid": float(len(good)),
                        "rollout/expected": self.expected,
                        **{f"rollout/{name}": float(count) for name, count in self.counts.items()}}
        return planned

    def score_all(self, rows, step, evaluation):
        """Returns the scores of this process's rows, and the scores of the rows of all processes.

        rows are pairs of a number and a row; the rows with one number are adjacent.
        """
        everyone = [rows]
        if WORLD > 1:
            everyone = [None] * WORLD
            dist.all_gather_object(everyone, rows)
        scores = self.score([row for part in everyone for row in part], step, evaluation)
        return scores[sum(len(part) for part in everyone[:RANK]) :][: len(rows)], scores

    def score(self, rows, step, evaluation):
        scores = [None]
        if self.parent:
            message = {"rows": [row for _, row in rows], "numbers": [number for number, _ in rows], "step": step,
                       "epoch": self.state["step"] / self.epoch_steps, "evaluation": evaluation}
            scores = [self.parent.request(type="score", **message)["scores"]]
        if WORLD > 1:
            dist.broadcast_object_list(scores, 0)
        return scores[0]

    def weight(self, batches):
        rollouts = [rollout for group in self.group.values() for rollout, _ in group]
        own = sum(sum(learned) for _, learned in rollouts) if self.by_token else len(rollouts)
        return max(1.0, self.sum([float(own)])[0])

    def losses(self, numbers):
        mine = [one for i in numbers for one in self.group[i]]
        if not mine:
            return sum(p.sum() * 0 for p in self.trained.values()), {}
        self.model.train()
        before = self.initial_log_probs(mine) if self.beta else None
        picked, learned = log_probs(self.model, [rollout for rollout, _ in mine], self.device)
        advantage = torch.tensor([a for _, a in mine], device=self.device)[:, None]
        # exp(x - x.detach()) is the ratio of the policy to itself: its value is 1, its gradient that of x.
        if self.by_sequence:
            x = picked.sum(1, keepdim=True) / learned.sum(1, keepdim=True)
        else:
            x = picked
        gain = torch.exp(x - x.detach()) * advantage * learned
        if self.beta:
            # The k3 estimator of the KL divergence from the initial policy, never negative (Schulman, 2020).
            kl = torch.exp(before - picked) - (before - picked) - 1
            gain = gain - self.beta * kl * learned
        per_rollout = gain.sum(1) if self.by_token else gain.sum(1) / learned.sum(1)
        return -per_rollout.sum(), {}

    def initial_log_probs(self, mine):
        """Returns the log-probabilities of rollouts under the initial policy."""
        now = copied(self.trained)
        assign(self.trained, self.first)
        with torch.no_grad():
            picked, _ = log_probs(self.model, [rollout for rollout, _ in mine], self.device)
        assign(self.trained, now)
        return picked

    def report(self, values):
        super().report({**values, **self.metrics} if "train/loss" in values else values)

    def check_early_stop(self, values):
        """Stops the training when the rollouts of each row have had equal scores for several steps."""
        rows = sum(len(batch) for batch in self.steps[self.state["step"] - 1])
        flat = {"steps": 0, "rows": 0} if self.has_signal else self.state.get("flat") or {"steps": 0, "rows": 0}
        if not self.has_signal:
            flat = {"steps": flat["steps"] + 1, "rows": flat["rows"] + rows}
        self.state["flat"], self.state["rollouts"] = flat, self.counts
        if flat["steps"] >= PATIENCE and flat["rows"] >= MIN_FLAT_ROWS or flat["steps"] == len(self.steps):
            self.state["stopped"], self.state["reason"] = True, (
                "no reward signal: the rollouts of each prompt have equal scores "
                f"(mean {self.metrics['reward/mean']:.3g} of 1), so there is nothing more to learn; "
                "to continue, make the evaluator's scores finer, use easier or harder "
                "prompts, or raise the temperature")

    def evaluate(self):
        """Reports the mean reward of one rollout of each held-out row."""
        step = self.state["step"]
        if not self.due():
            return
        torch.manual_seed((self.request["seed"] * 1_000_003 + step * 1009 + 500 + RANK) % 2**63)
        mine = self.held[RANK::WORLD]
        rows = [row for sample in mine for row in with_responses(sample, self.generate(sample, 1)[1])]
        _, scores = self.score_all(rows, step=step, evaluation=True)
        good = [s["value"] for s in scores if s["valid"]]
        self.state["evaluated"] = step
        self.report({"eval/reward": sum(good) / max(len(good), 1), "eval/invalid": 1 - len(good) / len(scores)})


def add_counts(before, **more):
    """Returns before, the counts since the start of the job, with more added."""
    return {name: (before or {}).get(name, 0) + n for name, n in more.items()}


def with_responses(sample, texts):
    """Returns the rows for the evaluator: a copy of the sample's row with each of texts as the response.

    Each returned row is a pair: the row's number in the dataset, and the row.
    """
    _, _, row, number = sample
    return [(number, {**row, "messages": row["messages"] + [{"role": "assistant", "content": text}]})
            for text in texts]


def advantages(rollouts, scores):
    """Returns the rollouts of a row that have a valid score, each with its normalized advantage.

    It returns no rollouts if all scores are equal, because there is nothing to learn.
    """
    good = [k for k, s in enumerate(scores) if s["valid"]]
    values = [scores[k]["value"] for k in good]
    mean = sum(values) / max(len(good), 1)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(good), 1))
    if spread < 1e-9:
        return []
    return [(rollouts[k], (scores[k]["value"] - mean) / (spread + 1e-4)) for k in good]
