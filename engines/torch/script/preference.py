"""Training on pairs of answers."""

import torch
import torch.nn.functional as F

from model import log_probs
from training import RANK, WORLD, Training


class Preference(Training):
    """DPO (Rafailov et al., 2023) and ORPO (Hong et al., 2024) on pairs of answers."""

    MOST_FALL = 0.5  # nats a token that the preferred answers may become less likely by, of DPO
    MEMORY = 0.9  # share of the past in the mean that is held to it

    reference = None  # sums of log-probabilities of each pair before the training, of DPO

    def sample(self, where, row):
        return self.reader.pair(where, row)

    def size(self, pair):
        return len(pair[0][0]) + len(pair[1][0])

    def weight(self, batches):
        return sum(len(batch) for batch in batches)

    @property
    def orpo(self):
        return (self.s.get("loss") or {}).get("method") == "ORPO"

    def prepare(self):
        if not self.orpo:
            self.model.eval()
            with torch.no_grad():
                self.reference = [self.sums([pair])[0][0].tolist() for pair in self.samples + self.held]

    def sums(self, pairs):
        """Sums of log-probabilities of both answers of each pair, and how many tokens they are of."""
        picked, learned = log_probs(self.model, [sample for pair in pairs for sample in pair], self.device)
        return picked.sum(1).view(-1, 2), learned.sum(1).view(-1, 2)

    def of(self, numbers, pairs):
        sums, counts = self.sums(pairs)
        if self.orpo:
            mean = sums / counts
            odds = mean - torch.log1p(-torch.exp(mean).clamp(max=1 - 1e-6))
            weight = ((self.s.get("loss") or {}).get("orpo") or {}).get("lambda") or 0.1
            margin, figures = odds[:, 0] - odds[:, 1], {}
            loss = -mean[:, 0] - weight * F.logsigmoid(margin)
        else:
            beta = ((self.s.get("loss") or {}).get("dpo") or {}).get("beta") or 0.1
            ratio = sums - torch.tensor([self.reference[i] for i in numbers], device=self.device)
            margin = beta * (ratio[:, 0] - ratio[:, 1])
            loss, figures = -F.logsigmoid(margin), {"train/chosen_shift": (ratio[:, 0] / counts[:, 0]).sum().item()}
        return loss.sum(), {"train/accuracy": (margin > 0).sum().item(), "train/margin": margin.sum().item(), **figures}

    def judge(self, values):
        """Stops before the preferred answers become unlikely: DPO widens the gap also by making both so."""
        shift = values.get("train/chosen_shift")
        if shift is None:
            return
        self.state["shift"] = self.MEMORY * self.state.get("shift", 0.0) + (1 - self.MEMORY) * shift
        if self.state["shift"] < -self.MOST_FALL:
            self.state["stopped"], self.state["reason"] = True, (
                f"the chosen answers have become less likely, by {-self.state['shift']:.2g} nats a token: going on would ruin the model; "
                "lower learningRate or epochs, or raise lossConfig.dpo.beta")

    def losses(self, chosen):
        loss, figures = self.of(chosen, [self.samples[i] for i in chosen])
        return loss, None, figures

    def held_loss(self):
        mine = range(RANK, len(self.held), WORLD)
        return sum(self.of([len(self.samples) + i], [self.held[i]])[0].item() for i in mine), float(len(mine))

    def kept(self):
        return {**super().kept(), "reference": self.reference}

    def take(self, kept):
        super().take(kept)
        self.reference = kept["reference"]
