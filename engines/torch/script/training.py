"""Supervised training, and the loop that all methods share."""

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
from rows import Fault, Reader, read_rows

RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
EVALUATIONS, PATIENCE = 10, 3  # of a whole training; without a better loss before an early stop
COMPANIONS = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja", "vocab.json",
              "merges.txt", "tokenizer.model", "LICENSE"]


class Training:
    def __init__(self, order, parent, device, stop):
        self.order, self.s, self.parent, self.device, self.stop = order, order["settings"], parent, device, stop
        self.work, self.values, self.rows = order["workDir"], {}, []
        self.state = {"step": 0, "tokens": 0, "evaluated": 0, "bestLoss": None, "worse": 0, "stopped": False}
        self.tokenizer = AutoTokenizer.from_pretrained(order["baseDir"], local_files_only=True)
        torch.manual_seed(order["seed"] % 2**63)
        self.model, self.trained = load_model(order, device)
        window = getattr(self.model.config, "max_position_embeddings", 0) or 1 << 20
        self.window = min(self.s["maxContextLength"] or window, window)
        self.reader = Reader(self.tokenizer, self.window)
        self.best, self.held = None, []
        self.read()
        self.plan()
        rate = self.s["learningRate"] or (1e-4 if self.s["loraRank"] else 1e-5)
        self.peak = rate
        self.optimizer = torch.optim.AdamW(self.trained.values(), lr=rate, weight_decay=self.s["optimizerWeightDecay"])
        self.identity = self.identify()

    def read(self):
        self.samples = [self.sample(*one) for one in read_rows(self.order["dataFiles"])]
        self.held = [self.sample(*one) for one in read_rows(self.order["evalFiles"])]
        if not self.held and (self.s["evalAutoCarveout"] or self.s["earlyStop"]) and len(self.samples) > 1:
            self.samples, self.held = carve(self.samples, self.order["seed"])
        if not self.samples:
            raise Fault("dataset: holds no rows to train on; upload a JSONL file with at least one")

    def plan(self):
        """The batches of every step: lists of samples' numbers."""
        self.steps = []
        for epoch in range(self.s["epochs"] or 1):
            order = list(range(len(self.samples)))
            random.Random(f"{self.order['seed']} {epoch}").shuffle(order)
            batches, size = [[]], 0
            for i in order:
                n = self.size(self.samples[i])
                full = len(batches[-1]) >= (self.s["batchSizeSamples"] or 8) or size + n > max(self.s["batchSize"] or 1 << 13, n)
                if batches[-1] and full:
                    batches.append([])
                    size = 0
                batches[-1].append(i)
                size += n
            every = self.s["gradientAccumulationSteps"] or 1
            self.steps += [batches[at : at + every] for at in range(0, len(batches), every)]
        self.epoch_steps = len(self.steps) / (self.s["epochs"] or 1)
        self.every = self.s["checkpointSteps"] or min(max(len(self.steps) // 4, 20), 1000)

    def identify(self):
        """What a checkpoint must have in common with the training that goes on from it."""
        digest = hashlib.sha256()
        for path in self.order["dataFiles"] + self.order["evalFiles"]:
            with open(path, "rb") as f:
                digest.update(f.read())
        return {"data set": digest.hexdigest(), "seed": self.order["seed"], "method": self.order["method"], "settings": self.s}

    def rate(self, step):
        warmup, steps = self.s["learningRateWarmupSteps"], len(self.steps)
        return self.peak * (step / warmup if step <= warmup else (steps - step + 1) / max(steps - warmup, 1))

    # What methods differ in: samples of rows, their sizes, and losses of batches.

    def sample(self, where, row):
        return self.reader.sample(where, row)

    def size(self, sample):
        return len(sample[0])

    def prepare(self):
        """Is called before the first step, not when a training goes on."""

    def losses(self, chosen):
        """The sums to go down on for samples of one batch, their weight, and figures."""
        picked, learned = log_probs(self.model, [self.samples[i] for i in chosen], self.device)
        return -picked.sum(), None, {}

    def weight(self, batches):
        """What the sums of a whole step are divided by, and the figure they make."""
        return sum(sum(self.samples[i][1][1:]) for batch in batches for i in batch)

    figure = "train/loss"

    def held_loss(self):
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
            ended, stop = step == len(self.steps) or self.state["stopped"], self.agree(self.stop.is_set())
            if step != saved and (ended or stop or step % self.every == 0):
                self.checkpoint()
                saved = step
            if ended:
                return self.result()
            if stop:
                return None
            self.step()

    def agree(self, flag):
        """Whether any of the copies says so."""
        return self.sum([float(flag)])[0] > 0

    def sum(self, numbers):
        if WORLD == 1:
            return numbers
        together = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def step(self):
        number = self.state["step"] + 1
        torch.manual_seed((self.order["seed"] * 1_000_003 + number * 1009 + RANK) % 2**63)
        self.model.train()
        batches = self.batches(self.steps[number - 1])
        weight, total, figures, counted = self.weight(batches), 0.0, {}, 0
        for batch in batches:
            mine = batch[RANK::WORLD]
            if not mine:
                continue
            loss, n, more = self.losses(mine)
            (loss / weight).backward()
            total, counted = total + loss.item(), counted + len(mine)
            for name, value in more.items():
                figures[name] = figures.get(name, 0.0) + value
        if WORLD > 1:
            for p in self.trained.values():
                p.grad = torch.zeros_like(p) if p.grad is None else p.grad
                dist.all_reduce(p.grad)
        norm = torch.nn.utils.clip_grad_norm_(list(self.trained.values()), 1.0).item()
        if not math.isfinite(norm):
            raise Fault(f"step {number}: the gradient is not a number any more: lower learningRate", "FAILED_PRECONDITION")
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(number)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        names = sorted(figures)
        totals = self.sum([total, counted] + [figures[name] for name in names])
        self.state["step"] = number
        self.state["tokens"] += sum(self.size(self.samples[i]) for batch in self.steps[number - 1] for i in batch)
        values = {self.figure: totals[0] / weight, "train/grad_norm": norm}
        values.update({name: value / max(totals[1], 1) for name, value in zip(names, totals[2:])})
        self.judge(values)
        self.report(values)

    def judge(self, values):
        """May stop the training, by the figures of the step that was taken."""

    def batches(self, planned):
        return planned

    def due(self):
        """Whether it is time to measure the rows held back."""
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
            self.state["stopped"], self.state["reason"] = True, "the loss on the rows held back fell no more: the model with the lowest is kept"
        self.report({"eval/loss": loss})

    def report(self, values):
        self.values.update(values)
        step = self.state["step"]
        row = {"step": step, "steps": len(self.steps), "epoch": step / self.epoch_steps, "learning_rate": self.rate(max(step, 1)),
               "time": datetime.datetime.now(datetime.timezone.utc).isoformat(), "tokens": self.state["tokens"], "values": values}
        self.rows.append(row)
        if self.parent:
            self.parent.tell(type="step", row=row)

    # Files.

    def write_model(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        self.model.save_pretrained(folder, safe_serialization=True)
        if not self.s["loraRank"]:
            for name in COMPANIONS:
                with contextlib.suppress(FileNotFoundError):
                    shutil.copyfile(os.path.join(self.order["baseDir"], name), os.path.join(folder, name))
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(folder, "README.md"))  # it names the base by its path here

    def kept(self):
        """What besides the parameters and the optimiser a training goes on with."""
        return {"best": self.best}

    def checkpoint(self):
        if self.parent:
            folder = os.path.join(self.work, f"checkpoint-{self.state['step']}")
            self.write_model(os.path.join(folder, "model"))
            torch.save({"trained": copied(self.trained), "optimizer": self.optimizer.state_dict(), "kept": self.kept()},
                       os.path.join(folder, "training.pt"))
            with open(os.path.join(folder, "state.json"), "w", encoding="utf-8") as f:
                json.dump({"state": self.state, "identity": self.identity, "values": self.values}, f)
            with open(os.path.join(folder, "metrics.jsonl"), "w", encoding="utf-8") as f:
                f.writelines(json.dumps(row) + "\n" for row in self.rows)
            self.parent.ask(type="checkpoint", step=self.state["step"], dir=folder)
            shutil.rmtree(folder)
        if WORLD > 1:
            dist.barrier()

    def resume(self, folder):
        with open(os.path.join(folder, "state.json"), encoding="utf-8") as f:
            saved = json.load(f)
        differ = [name for name in self.identity if saved["identity"].get(name) != self.identity[name]]
        if differ:
            raise Fault(f"the checkpoint to resume from was made with another {', '.join(differ)}: begin anew without it", "FAILED_PRECONDITION")
        self.state, self.values = saved["state"], saved["values"]
        with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as f:
            self.rows = [json.loads(line) for line in f]
        tensors = torch.load(os.path.join(folder, "training.pt"), map_location=self.device, weights_only=True)
        assign(self.trained, tensors["trained"])
        self.optimizer.load_state_dict(tensors["optimizer"])
        self.take(tensors["kept"])

    def take(self, kept):
        self.best = kept["best"]

    def result(self):
        if self.state["stopped"] and self.best:
            assign(self.trained, self.best)
        folder = os.path.join(self.work, "result")
        if self.parent:
            self.write_model(folder)
        return {"dir": folder, "adapter": self.s["loraRank"] > 0, "steps": self.state["step"], "tokens": self.state["tokens"],
                "stoppedEarly": self.state["stopped"], "reason": self.state.get("reason", ""), "values": self.values}


def carve(samples, seed):
    """Holds one row in ten back, at least one."""
    held = set(random.Random(f"{seed} held").sample(range(len(samples)), min(max(1, len(samples) // 10), 1000)))
    return [s for i, s in enumerate(samples) if i not in held], [s for i, s in enumerate(samples) if i in held]
