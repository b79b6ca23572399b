"""Training on the model's own answers."""

import math

import torch
import torch.distributed as dist

from model import assign, copied, log_probs
from rows import Fault
from training import PATIENCE, RANK, WORLD, Training

FLAT_ROWS = 200  # least rows without a difference that stop a training


class Reinforcement(Training):
    """GRPO (Shao et al., 2024): answers of the model itself, scored by the parent.

    Each answer is used for one step, so that it is always of the policy that
    learns from it, and no ratio is ever clipped.
    """

    figure = "train/loss"
    first = None  # the trained parameters before the training, for the KL term

    def sample(self, where, row):
        messages = row.get("messages")
        if not isinstance(messages, list) or not messages or messages[-1].get("role") != "user":
            raise Fault(f"{where}: a row to answer has messages, the last of them the user's")
        asked = {"tools": row.get("tools"), "add_generation_prompt": True}
        text = self.reader.shown(self.reader.render(messages, **asked), messages, **asked)
        tokens = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(tokens) >= self.window:
            raise Fault(f"{where}: has {len(tokens)} tokens and fills the window of {self.window}: shorten it")
        return tokens, [True] * len(tokens), row

    def __init__(self, order, parent, device, stop):
        super().__init__(order, parent, device, stop)
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

    def kept(self):
        return {**super().kept(), "first": self.first}

    def take(self, kept):
        super().take(kept)
        self.first = kept["first"]

    def answer(self, sample, n):
        """So many answers to one row: (tokens, learned), and their texts."""
        r, prompt = self.rollouts, sample[0]
        most = min(r.get("maxOutputTokens") or 2048, self.window - len(prompt))
        self.model.eval()
        with torch.no_grad():
            out = self.model.generate(
                input_ids=torch.tensor([prompt], device=self.device), attention_mask=torch.ones(1, len(prompt), dtype=torch.long, device=self.device),
                do_sample=True, temperature=r.get("temperature") or 0.7, top_p=r.get("topP") or 1.0, top_k=r.get("topK") or 0, use_cache=True,
                max_new_tokens=most, num_return_sequences=n, eos_token_id=self.tokenizer.eos_token_id, pad_token_id=self.tokenizer.eos_token_id)
        answers = []
        for row in out[:, len(prompt) :].tolist():
            end = row.index(self.tokenizer.eos_token_id) + 1 if self.tokenizer.eos_token_id in row else len(row)
            answers.append((prompt + row[:end], [False] * len(prompt) + [True] * end))
        texts = [self.tokenizer.decode(tokens[len(prompt) :], skip_special_tokens=True) for tokens, _ in answers]
        return answers, texts

    def batches(self, planned):
        """Answers the rows of the step, each copy its own, and has all answers scored."""
        mine = [i for batch in planned for i in batch[RANK::WORLD]]
        answered = {i: self.answer(self.samples[i], self.candidates) for i in mine}
        own, scores = self.scored([row for i in mine for row in judged(self.samples[i], answered[i][1])])
        self.group = {}
        for i in mine:
            answers = answered[i][0]
            self.group[i], own = advantages(answers, own[: len(answers)]), own[len(answers) :]
        good = [s["value"] for s in scores if s["valid"]]
        if scores and not good:
            raise Fault(f"evaluator: gave no valid score for any of {len(scores)} answers; the first reason is: {scores[0].get('reason') or 'none was given'}", "FAILED_PRECONDITION")
        self.live = self.sum([float(any(self.group.values()))])[0] > 0
        written = self.sum([float(sum(sum(learned) for i in mine for _, learned in answered[i][0]))])[0]
        self.tally = tallied(self.state.get("rollouts"), done=len(scores), failed=len(scores) - len(good), rows=sum(len(batch) for batch in planned), tokens=int(written))
        self.told = {"reward/mean": sum(good) / max(len(good), 1), "reward/valid": float(len(good)), "rollout/expected": self.expected,
                     **{f"rollout/{name}": float(count) for name, count in self.tally.items()}}
        return planned

    def scored(self, rows):
        """The scores of this copy's rows, and those of all copies'."""
        everyone = [rows]
        if WORLD > 1:
            everyone = [None] * WORLD
            dist.all_gather_object(everyone, rows)
        scores = self.score([row for part in everyone for row in part])
        return scores[sum(len(part) for part in everyone[:RANK]) :][: len(rows)], scores

    def score(self, rows):
        box = [self.parent.ask(type="score", rows=rows)["scores"] if self.parent else None]
        if WORLD > 1:
            dist.broadcast_object_list(box, 0)
        return box[0]

    def weight(self, batches):
        answers = [answer for group in self.group.values() for answer, _ in group]
        return max(1.0, self.sum([float(sum(sum(learned) for _, learned in answers) if self.by_token else len(answers))])[0])

    def losses(self, chosen):
        mine = [one for i in chosen for one in self.group[i]]
        if not mine:
            return sum(p.sum() * 0 for p in self.trained.values()), None, {}
        self.model.train()
        before = self.before(mine) if self.beta else None
        picked, learned = log_probs(self.model, [answer for answer, _ in mine], self.device)
        advantage = torch.tensor([a for _, a in mine], device=self.device)[:, None]
        # exp(x - x.detach()) is 1 and has the gradient of x: the ratio of a policy to itself.
        if self.by_sequence:
            x = picked.sum(1, keepdim=True) / learned.sum(1, keepdim=True)
        else:
            x = picked
        gain = torch.exp(x - x.detach()) * advantage * learned
        if self.beta:
            # An estimate, never negative, of how far a token is from the first policy (Schulman, 2020).
            far = torch.exp(before - picked) - (before - picked) - 1
            gain = gain - self.beta * far * learned
        per_answer = gain.sum(1) if self.by_token else gain.sum(1) / learned.sum(1)
        return -per_answer.sum(), None, {}

    def before(self, mine):
        """What the first policy thinks of answers."""
        now = copied(self.trained)
        assign(self.trained, self.first)
        with torch.no_grad():
            picked, _ = log_probs(self.model, [answer for answer, _ in mine], self.device)
        assign(self.trained, now)
        return picked

    def report(self, values):
        super().report({**values, **self.told} if "train/loss" in values else values)

    def judge(self, values):
        """Stops where answers to each row have scored alike for long: nothing is learnt from that."""
        rows = sum(len(batch) for batch in self.steps[self.state["step"] - 1])
        flat = {"steps": 0, "rows": 0} if self.live else self.state.get("flat") or {"steps": 0, "rows": 0}
        if not self.live:
            flat = {"steps": flat["steps"] + 1, "rows": flat["rows"] + rows}
        self.state["flat"], self.state["rollouts"] = flat, self.tally
        if flat["steps"] >= PATIENCE and flat["rows"] >= FLAT_ROWS or flat["steps"] == len(self.steps):
            self.state["stopped"], self.state["reason"] = True, (
                f"no reward signal: the answers to each prompt scored alike ({self.told['reward/mean']:.3g} of 1 in the mean), so there is nothing more to learn: "
                "if that is not the end, let the evaluator give finer scores, ask easier or harder prompts, or raise the temperature")

    def evaluate(self):
        """Rows held back are answered once each: the reward says how it goes."""
        step = self.state["step"]
        if not self.due():
            return
        torch.manual_seed((self.order["seed"] * 1_000_003 + step * 1009 + 500 + RANK) % 2**63)
        mine = self.held[RANK::WORLD]
        _, scores = self.scored([row for sample in mine for row in judged(sample, self.answer(sample, 1)[1])])
        good = [s["value"] for s in scores if s["valid"]]
        self.state["evaluated"] = step
        self.report({"eval/reward": sum(good) / max(len(good), 1), "eval/invalid": 1 - len(good) / len(scores)})


def tallied(before, **more):
    """Counts since the beginning of the job."""
    return {name: (before or {}).get(name, 0) + n for name, n in more.items()}


def judged(sample, texts):
    """A row with each of its answers, for the evaluator."""
    row = sample[2]
    return [{**row, "messages": row["messages"] + [{"role": "assistant", "content": text}]} for text in texts]


def advantages(answers, scores):
    """How much better than the others of its row each validly scored answer is; none where all are alike."""
    good = [k for k, s in enumerate(scores) if s["valid"]]
    values = [scores[k]["value"] for k in good]
    mean = sum(values) / max(len(good), 1)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / max(len(good), 1))
    if spread < 1e-9:  # no difference to learn from
        return []
    return [(answers[k], (scores[k]["value"] - mean) / (spread + 1e-4)) for k in good]
