"""Loading of a proposer by `speculation`."""

from __future__ import annotations

from pathlib import Path

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.proposers.base import Proposer, hidden_size_of
from pageant.models.decoder import Decoder
from pageant.protocol.drafting import Speculation

__all__ = ["load_proposer"]


def load_proposer(config: RunnerConfig, target: Decoder) -> Proposer | None:
    """The proposer that the executor is to have, if any.

    Raises:
        CheckpointError: what `speculation.model` holds does not go with the target.
        TopologyError: transformers runs the target, which then shows no hidden states.
    """
    settings = config.speculation
    if settings is None or not settings.on_device:
        return None
    path = config.model if settings.model is None else Path(settings.model)
    if settings.method == "draft":
        from pageant.actors.executor.runners.proposers.draft_model import DraftModel

        return DraftModel(path, target, config.dtype, config.max_model_len)
    if settings.method == "medusa":
        from pageant.actors.executor.runners.proposers.medusa import Medusa

        return Medusa(path, target)
    return _layer(config, settings, path, target)


def _layer(config: RunnerConfig, settings: Speculation, path: Path, target: Decoder) -> Proposer:
    from pageant.actors.executor.runners.proposers.draft_layer import DraftLayer, LayerProposer
    from pageant.models.checkpoint import Checkpoint
    from pageant.models.heads.eagle import EagleHead
    from pageant.models.heads.mtp import load_mtp_layer
    from pageant.models.native import NativeDecoder

    hidden_size_of(target)
    assert isinstance(target, NativeDecoder), "it has hidden states to show"
    layer: DraftLayer
    if settings.method == "eagle":
        layer = EagleHead(path, target, config.max_model_len)
    else:
        layer = load_mtp_layer(Checkpoint(path), target, config.max_model_len, config.quantization)
    return LayerProposer(layer, config.max_model_len)
