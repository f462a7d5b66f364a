"""The layers that share blocks of the KV cache, as a runner's configuration and its drafts allow."""

from __future__ import annotations

import torch

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.proposers.base import Proposer
from pageant.kernels.collectives.base import Collectives
from pageant.models.decoder import Decoder
from pageant.models.layer_groups import LayerGroups
from pageant.protocol.errors import ConfigurationError

__all__ = ["arrange_layers", "told_windows"]

Windows = tuple[int | None, ...]

_NO_WINDOW = -1


def told_windows(everyone: Collectives, windows: Windows) -> Windows:
    """Return the leader's windows of drafts to every member of a group. Each calls it; only the leader's are told."""
    count = torch.tensor([len(windows)])
    everyone.broadcast(count)
    told = torch.tensor([_NO_WINDOW if window is None else window for window in windows])
    if everyone.rank != 0:
        told = torch.empty(int(count), dtype=torch.int64)
    if int(count):
        everyone.broadcast(told)
    return tuple(None if window == _NO_WINDOW else window for window in told.tolist())


def arrange_layers(decoder: Decoder, proposer: Proposer | None, config: RunnerConfig, beside: Windows) -> int:
    """Put a decoder's layers into groups, and return the bytes that drafts have of each block.

    Where drafts are made with keys and values of their own, those would have to be in every group's blocks: then there
    is one group. Mutates the decoder's groups and taps.

    Args:
        proposer: None where nothing drafts, or another member of the group does.
        beside: the windows of the drafts' own layers, wherever these are.

    Raises:
        ConfigurationError: drafts or small blocks do not go with recurrent layers. The message says what would do.
    """
    block_size, max_model_len = config.block_size, config.max_model_len
    drafts_bytes = 0
    if proposer is not None:
        decoder.taps = proposer.taps
        drafts_bytes = proposer.kv_bytes_per_block(block_size)
    if not decoder.spec.is_causal:
        decoder.groups = LayerGroups.scratch(decoder.windows)
    elif config.group_layers and not beside:
        decoder.groups = LayerGroups.by_window(decoder.windows, max_model_len)
    else:
        decoder.groups = LayerGroups.one(decoder.windows, max_model_len, beside)
    if decoder.states is not None:
        method = None if config.speculation is None else config.speculation.method
        if proposer is not None and method != "mtp":
            raise ConfigurationError(
                f"speculation is of method {method!r}, and the model has recurrent layers; expected ngram or mtp: "
                "drafts in trees, and drafters of checkpoints of their own, are not in this version"
            )
        decoder.groups = decoder.states.groups_behind(decoder.groups, decoder.kv_layout, block_size)
    return drafts_bytes
