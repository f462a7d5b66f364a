"""The layers that share blocks of the KV cache, as a runner's configuration and its drafts allow."""

from __future__ import annotations

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.proposers.base import Proposer
from pageant.models.decoder import Decoder
from pageant.models.layer_groups import LayerGroups
from pageant.protocol.errors import ConfigurationError

__all__ = ["arrange_layers"]


def arrange_layers(decoder: Decoder, proposer: Proposer | None, config: RunnerConfig) -> int:
    """Put a decoder's layers into groups, and return the bytes that drafts have of each block.

    Where drafts are made with keys and values of their own, those would have to be in every group's blocks: then there
    is one group. Mutates the decoder's groups and taps.

    Raises:
        ConfigurationError: drafts or small blocks do not go with recurrent layers. The message says what would do.
    """
    block_size, max_model_len = config.block_size, config.max_model_len
    drafts_bytes, beside = 0, tuple[int | None, ...]()
    if proposer is not None:
        decoder.taps, beside = proposer.taps, proposer.windows
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
