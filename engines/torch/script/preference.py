"""Preference training: DPO and ORPO."""

import torch
import torch.nn.functional as F

from model import log_probs
from training import RANK, WORLD, Training


class Preference(Training):
    """Trains on preference pairs with DPO (Rafailov et al., 2023) or ORPO (Hong et al., 2024)."""

    MAX_CHOSEN_DROP = 0.5  # maximum drop of the chosen responses' mean log-probability, in nats per token (DPO)
    DECAY = 0.9  # weight of the past in the moving average that is compared with MAX_CHOSEN_DROP

    reference = None  # summed log-probabilities of each pair under the initial model (DPO)

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
        """Returns the summed log-probabilities of both responses of each pair, and their token counts."""
        picked, learned = log_probs(self.model, [sample for pair in pairs for sample in pair], self.device)
        return picked.sum(1).view(-1, 2), learned.sum(1).view(-1, 2)

    def pair_losses(self, numbers, pairs):
        """Returns the summed loss and metrics of pairs; numbers are their indices in reference."""
        sums, counts = self.sums(pairs)
        if self.orpo:
            mean = sums / counts
            odds = mean - torch.log1p(-torch.exp(mean).clamp(max=1 - 1e-6))
            weight = ((self.s.get("loss") or {}).get("orpo") or {}).get("lambda") or 0.1
            margin, metrics = odds[:, 0] - odds[:, 1], {}
            loss = -mean[:, 0] - weight * F.logsigmoid(margin)
        else:
            beta = ((self.s.get("loss") or {}).get("dpo") or {}).get("beta") or 0.1
            ratio = sums - torch.tensor([self.reference[i] for i in numbers], device=self.device)
            margin = beta * (ratio[:, 0] - ratio[:, 1])
            loss, metrics = -F.logsigmoid(margin), {"train/chosen_shift": (ratio[:, 0] / counts[:, 0]).sum().item()}
        return loss.sum(), {"train/accuracy": (margin > 0).sum().item(), "train/margin": margin.sum().item(), **metrics}

    def check_early_stop(self, values):
        """Stops the training when the chosen responses become unlikely.

        DPO can widen the margin by making both responses of a pair less likely.
        """
        shift = values.get("train/chosen_shift")
        if shift is None:
            return
        self.state["shift"] = self.DECAY * self.state.get("shift", 0.0) + (1 - self.DECAY) * shift
        if self.state["shift"] < -self.MAX_CHOSEN_DROP:
            self.state["stopped"], self.state["reason"] = True, (
                f"the chosen responses have become less likely, by {-self.state['shift']:.2g} nats per token: "
                "further steps would degrade the model; lower learningRate or epochs, or raise lossConfig.dpo.beta")

    def losses(self, numbers):
        return self.pair_losses(numbers, [self.samples[i] for i in numbers])

    def held_loss(self):
        mine = range(RANK, len(self.held), WORLD)
        loss = sum(self.pair_losses([len(self.samples) + i], [self.held[i]])[0].item() for i in mine)
        return loss, float(len(mine))

    def method_state(self):
        return {**super().method_state(), "reference": self.reference}

    def load_method_state(self, saved):
        super().load_method_state(saved)
        self.reference = saved["reference"]
