"""Tiny models with a layer that drafts (multi-token prediction): random ones, and ones whose drafts are often right."""

from __future__ import annotations

import copy
import re

import torch
from transformers import PreTrainedModel

from pageant.scripts.samples.mtp_model import MTPModel

__all__ = ["drafting_well", "random_mtp"]

_NORM = re.compile(r"norm")
_OUTPUT = re.compile(r"(o_proj|out_proj|down_proj)(\.weight)?$")
DAMPING = 0.01
"""What all that layers add to the stream is multiplied by, so that the last token says the most about the next."""


def random_mtp(model: PreTrainedModel, seed: int = 0) -> MTPModel:
    """Return a model with a random layer that drafts."""
    torch.manual_seed(seed)
    mtp = MTPModel(model).eval().requires_grad_(False)
    drafting = [*mtp.layer.named_parameters(), *mtp.layer.named_buffers()]
    drafting += [("token_norm", mtp.token_norm.weight), ("hidden_norm", mtp.hidden_norm.weight)]
    for name, tensor in drafting:
        if _NORM.search(name) or name.endswith("bias"):  # they are ones and zeros
            tensor.normal_(mean=tensor.mean().item(), std=0.2)
    mtp.join.weight.normal_(std=0.15)
    return mtp


def drafting_well(model: PreTrainedModel, seed: int = 0) -> MTPModel:
    """Return a copy of a model whose layer mostly guesses what the model says: both read little but the last token."""
    torch.manual_seed(seed)
    mtp = MTPModel(copy.deepcopy(model)).eval().requires_grad_(False)
    for part in (mtp.model, mtp.layer):
        for name, tensor in part.named_parameters():
            if _OUTPUT.search(name):
                tensor.mul_(DAMPING)
    mtp.layer.model.norm.load_state_dict(mtp.model.model.norm.state_dict())
    size = mtp.join.out_features
    mtp.join.weight.normal_(std=0.002)
    mtp.join.weight[:, :size] += torch.eye(size) * model.config.initializer_range
    return mtp
