"""Loads the model to train and computes its log-probabilities."""

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM

from rows import TrainingError


def load_model(request, device):
    """Returns the model of a request, with an adapter if the request trains one, and its trained parameters by name."""
    rank, base = request["settings"]["loraRank"], request["baseDir"]
    # Trained parameters are float32: bfloat16 would round small updates away.
    dtype = torch.float32 if rank == 0 or device.type == "cpu" else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype, local_files_only=True).to(device)
    model.config.use_cache = False
    if request["adapterDir"]:
        model = PeftModel.from_pretrained(model, request["adapterDir"], is_trainable=rank > 0)
        if rank == 0:
            model = model.merge_and_unload()
        elif (have := model.peft_config["default"].r) != rank:
            raise TrainingError(f"loraRank: the adapter to continue from has rank {have}, not {rank}: "
                                f"set {have}, or 0 to train all parameters")
    elif rank > 0:
        s = request["settings"]
        modules = s.get("loraTargetModules") or [
            "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        try:
            config = LoraConfig(r=rank, lora_alpha=s["loraAlpha"] or 2 * rank, lora_dropout=s["loraDropout"],
                                target_modules=modules, bias="none", task_type="CAUSAL_LM")
            model = get_peft_model(model, config)
        except ValueError as error:
            raise TrainingError(f"loraTargetModules: {error}")
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for p in trained.values():
        p.data = p.data.float()
    return model, trained


def pad(samples, device):
    """Returns the tokens, the loss mask and the attention mask of a batch of samples."""
    width = max(len(tokens) for tokens, _ in samples)
    tokens = torch.tensor([t + [0] * (width - len(t)) for t, _ in samples], device=device)
    learned = torch.tensor([l + [False] * (width - len(l)) for _, l in samples], device=device)
    mask = torch.tensor([[1] * len(t) + [0] * (width - len(t)) for t, _ in samples], device=device)
    return tokens, learned, mask


def log_probs(model, samples, device):
    """Returns the log-probabilities of each sample's tokens, 0 outside of the loss mask, and the loss mask."""
    tokens, learned, mask = pad(samples, device)
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type != "cpu"):
        logits = model(input_ids=tokens, attention_mask=mask).logits[:, :-1].float()
    picked = -F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none")
    return picked * learned[:, 1:], learned[:, 1:]


def copied(parameters):
    return {name: p.detach().clone() for name, p in parameters.items()}


def assign(parameters, values):
    with torch.no_grad():
        for name, p in parameters.items():
            p.copy_(values[name])
