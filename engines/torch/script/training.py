"""Supervised training, and the training loop of all methods."""

import contextlib
import datetime
import hashlib
import json
import math
import os
import random
import shutil

import torch
import torch.distributed as dist
from transformers import AutoTokenizer

from model import assign, copied, load_model, log_probs
from rows import TrainingError, Reader, read_rows

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
EVALUATIONS = 10  # number of evaluations during a training run
PATIENCE = 3  # evaluations without a better loss before an early stop
TOKENIZER_FILES = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
                   "vocab.json", "merges.txt", "tokenizer.model", "LICENSE"]


class Training:
    def __init__(self, request, parent, device, stop):
        self.request, self.s, self.parent, self.device, self.stop = request, request["settings"], parent, device, stop
        self.work, self.values, self.rows = request["workDir"], {}, []
        self.state = {"step": 0, "tokens": 0, "evaluated": 0, "bestLoss": None, "worse": 0, "stopped": False}
        self.tokenizer = AutoTokenizer.from_pretrained(request["baseDir"], local_files_only=True)
        torch.manual_seed(request["seed"] % 2**63)
        self.model, self.trained = load_model(request, device)
        limit = getattr(self.model.config, "max_position_embeddings", 0) or 1 << 20
        self.context_length = min(self.s["maxContextLength"] or limit, limit)
        self.reader = Reader(self.tokenizer, self.context_length)
        self.best = None
        # only the files of rank 0 have the rows
        self.samples, self.held, digest = from_first(lambda: (*self.read(), self.digest()))
        self.plan()
        scale = self.s.get("learningRateMultiplier") or 1
        rate = self.s["learningRate"] or scale * (1e-4 if self.s["loraRank"] else 1e-5)
        self.peak = rate
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=rate, weight_decay=self.s["optimizerWeightDecay"])
        self.identity = {"data set": digest, "seed": request["seed"], "method": request["method"], "settings": self.s}

    def read(self):
        """Returns the samples to train on and those held out for evaluation."""
        samples = self.read_samples(self.request["dataFiles"])
        held = self.read_samples(self.request["evalFiles"])
        if not held and (self.s["evalAutoCarveout"] or self.s["earlyStop"]) and len(samples) > 1:
            samples, held = carve_out(samples, self.request["seed"])
        if not samples:
            raise TrainingError("dataset: has no rows to train on; upload a JSONL file with at least one row")
        return samples, held

    def digest(self):
        """Returns the digest of the dataset, which must not change when a training run is resumed."""
        digest = hashlib.sha256()
        for path in self.request["dataFiles"] + self.request["evalFiles"]:
            with open(path, "rb") as f:
                digest.update(f.read())
        return digest.hexdigest()

    def plan(self):
        """Sets the batches of every step: lists of sample indices."""
        self.steps = []
        for epoch in range(self.s["epochs"] or 1):
            order = list(range(len(self.samples)))
            random.Random(f"{self.request['seed']} {epoch}").shuffle(order)
            batches, size = [[]], 0
            for i in order:
                n = self.size(self.samples[i])
                full = len(batches[-1]) >= (self.s["batchSizeSamples"] or 8)
                full = full or size + n > max(self.s["batchSize"] or 1 << 13, n)
                if batches[-1] and full:
                    batches.append([])
                    size = 0
                batches[-1].append(i)
                size += n
            every = self.s["gradientAccumulationSteps"] or 1
            self.steps += [batches[at : at + every] for at in range(0, len(batches), every)]
        self.epoch_steps = len(self.steps) / (self.s["epochs"] or 1)
        self.every = self.s["checkpointSteps"] or min(max(len(self.steps) // 4, 20), 1000)

    def rate(self, step):
        warmup, steps = self.s["learningRateWarmupSteps"], len(self.steps)
        return self.peak * (step / warmup if step <= warmup else (steps - step + 1) / max(steps - warmup, 1))

    # The training methods override the following functions, up to "The loop".

    def read_samples(self, files):
        return [self.sample(*one) for one in read_rows(files)]

    def sample(self, where, row):
        return self.reader.sample(where, row)

    def size(self, sample):
        return len(sample[0])

    def prepare(self):
        """Runs before the first step of a training run that does not resume from a checkpoint."""

    def losses(self, numbers):
        """Returns the summed loss of the samples of one batch, and the sums of further metrics."""
        picked, learned = log_probs(self.model, [self.samples[i] for i in numbers], self.device)
        return -picked.sum(), {}

    def weight(self, batches):
        """Returns the divisor of the summed loss of a step."""
        return sum(sum(self.samples[i][1][1:]) for batch in batches for i in batch)

    loss_metric = "train/loss"

    def held_loss(self):
        """Returns the summed loss of this process's held-out samples, and the divisor of that sum."""
        total = weight = 0.0
        for sample in self.held[RANK::WORLD]:
            picked, learned = log_probs(self.model, [sample], self.device)
            total, weight = total - picked.sum().item(), weight + learned.sum().item()
        return total, weight

    # The loop.

    def run(self):
        saved = self.state["step"]
        while True:
            self.evaluate()
            step = self.state["step"]
            done, stop = step == len(self.steps) or self.state["stopped"], self.any(self.stop.is_set())
            if step != saved and (done or stop or step % self.every == 0):
                self.checkpoint()
                saved = step
            if done:
                return self.result()
            if stop:
                return None
            self.step()

    def any(self, flag):
        """Reports whether flag is set in any process."""
        return self.sum([float(flag)])[0] > 0

    def sum(self, numbers):
        if WORLD == 1:
            return numbers
        sums = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return sums.tolist()

    def step(self):
        number = self.state["step"] + 1
        torch.manual_seed((self.request["seed"] * 1_000_003 + number * 1009 + RANK) % 2**63)
        self.model.train()
        batches = self.batches(self.steps[number - 1])
        weight, total, metrics, counted = self.weight(batches), 0.0, {}, 0
        for batch in batches:
            mine = batch[RANK::WORLD]
            if not mine:
                continue
            loss, more = self.losses(mine)
            (loss / weight).backward()
            total, counted = total + loss.item(), counted + len(mine)
            for name, value in more.items():
                metrics[name] = metrics.get(name, 0.0) + value
        if WORLD > 1:
            for p in self.trained.values():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
        norm = torch.nn.utils.clip_grad_norm_(list(self.trained.values()), 1.0).item()
        if not math.isfinite(norm):
            raise TrainingError(f"step {number}: the gradient is not finite: lower learningRate", "FAILED_PRECONDITION")
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        names = sorted(metrics)
        totals = self.sum([total, counted] + [metrics[name] for name in names])
        self.state["step"] = number
        self.state["tokens"] += sum(self.size(self.samples[i]) for batch in self.steps[number - 1] for i in batch)
        values = {self.loss_metric: totals[0] / weight, "train/grad_norm": norm}
        values.update({name: value / max(totals[1], 1) for name, value in zip(names, totals[2:])})
        self.check_early_stop(values)
        self.report(values)

    def check_early_stop(self, values):
        """Sets state["stopped"] and state["reason"] if the metrics of the last step are a reason to stop."""

    def batches(self, planned):
        return planned

    def due(self):
        """Reports whether the held-out rows are to be evaluated at this step."""
        step = self.state["step"]
        due = step % max(1, len(self.steps) // EVALUATIONS) == 0 or step == len(self.steps)
        return due and self.held and self.state["evaluated"] < step

    def evaluate(self):
        step = self.state["step"]
        if not self.due():
            return
        self.model.eval()
        with torch.no_grad():
            total, weight = self.sum(list(self.held_loss()))
        loss = total / max(weight, 1)
        self.state["evaluated"], self.state["worse"] = step, self.state["worse"] + 1
        if self.state["bestLoss"] is None or loss < self.state["bestLoss"]:
            self.state["bestLoss"], self.state["worse"] = loss, 0
            if self.s["earlyStop"]:
                self.best = copied(self.trained)
        if self.s["earlyStop"] and self.state["worse"] >= PATIENCE:
            self.state["stopped"] = True
            self.state["reason"] = "the evaluation loss stopped improving: the model with the lowest loss is kept"
        self.report({"eval/loss": loss})

    def report(self, values):
        # a smaller value is the rounding error of a sum, as engines.RoundMetrics explains
        values = {name: 0.0 if abs(value) < 1e-12 else value for name, value in values.items()}
        self.values.update(values)
        step = self.state["step"]
        row = {"step": step, "steps": len(self.steps), "epoch": step / self.epoch_steps,
               "learning_rate": self.rate(max(step, 1)),
               "time": datetime.datetime.now(datetime.timezone.utc).isoformat(),
               "tokens": self.state["tokens"], "values": values}
        self.rows.append(row)
        if self.parent:
            self.parent.send(type="step", row=row)

    # Files.

    def write_model(self, directory):
        shutil.rmtree(directory, ignore_errors=True)
        self.model.save_pretrained(directory, safe_serialization=True)
        if not self.s["loraRank"]:
            for name in TOKENIZER_FILES:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(os.path.join(self.request["baseDir"], name), os.path.join(directory, name))
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(directory, "README.md"))  # contains the local path of the base model

    def method_state(self):
        """Returns the state of the method, which a checkpoint stores with the parameters and the optimizer."""
        return {"best": self.best}

    def checkpoint(self):
        if self.parent:
            directory = os.path.join(self.work, f"checkpoint-{self.state['step']}")
            self.write_model(os.path.join(directory, "model"))
            tensors = {"trained": copied(self.trained), "optimizer": self.optimizer.state_dict(),
                       "kept": self.method_state()}
            torch.save(tensors, os.path.join(directory, "training.pt"))
            with open(os.path.join(directory, "state.json"), "w", encoding="utf-8") as f:
                json.dump({"state": self.state, "identity": self.identity, "values": self.values}, f)
            with open(os.path.join(directory, "metrics.jsonl"), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(row) + "\n" for row in self.rows)
            self.parent.request(type="checkpoint", step=self.state["step"], dir=directory)
            shutil.rmtree(directory)
        if WORLD > 1:
            dist.barrier()

    def resume(self, directory):
        with open(os.path.join(directory, "state.json"), encoding="utf-8") as f:
            saved = json.load(f)
        differ = [name for name in self.identity if saved["identity"].get(name) != self.identity[name]]
        if differ:
            raise TrainingError(f"the checkpoint to resume from was made with another {', '.join(differ)}: "
                                "start a new job without it", "FAILED_PRECONDITION")
        self.state, self.values = saved["state"], saved["values"]
        with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
            self.rows = [json.loads(line) for line in f]
        tensors = torch.load(os.path.join(directory, "training.pt"), map_location=self.device, weights_only=True)
        assign(self.trained, tensors["trained"])
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.load_method_state(tensors["kept"])

    def load_method_state(self, saved):
        self.best = saved["best"]

    def result(self):
        if self.state["stopped"] and self.best:
            assign(self.trained, self.best)
        directory = os.path.join(self.work, "result")
        if self.parent:
            self.write_model(directory)
        return {"dir": directory, "adapter": self.s["loraRank"] > 0, "steps": self.state["step"],
                "tokens": self.state["tokens"], "stoppedEarly": self.state["stopped"],
                "reason": self.state.get("reason", ""), "values": self.values}


def from_first(compute):
    """Returns the result of compute() on rank 0, or raises its TrainingError, in all processes."""
    if WORLD == 1:
        return compute()
    outcome = [None]
    if RANK == 0:
        try:
            outcome = [(compute(), None)]
        except TrainingError as error:
            outcome = [(None, error)]
    dist.broadcast_object_list(outcome, 0)
    value, error = outcome[0]
    if error:
        raise error
    return value


def carve_out(samples, seed):
    """Splits off a tenth of the samples, at least one, for evaluation."""
    held = set(random.Random(f"{seed} held").sample(range(len(samples)), min(max(1, len(samples) // 10), 1000)))
    return [s for i, s in enumerate(samples) if i not in held], [s for i, s in enumerate(samples) if i in held]
