"""Loading of a proposer by `speculation`."""

from __future__ import annotations

from pathlib import Path

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.proposers.base import Proposer, hidden_size_of
from pageant.models.checkpoint import Checkpoint
from pageant.models.decoder import Decoder
from pageant.models.loading import load_ends
from pageant.protocol.drafting import Speculation
from pageant.protocol.errors import ConfigurationError

__all__ = ["load_proposer"]


def load_proposer(config: RunnerConfig, target: Decoder) -> Proposer | None:
    """The proposer that the executor is to have, if any.

    Raises:
        CheckpointError: what `speculation.model` holds does not go with the target.
        ConfigurationError: it reads layers of the target that other executors compute.
        TopologyError: transformers runs the target, which then shows no hidden states.
    """
    settings = config.speculation
    if settings is None or not settings.on_device:
        return None
    path = config.model if settings.model is None else Path(settings.model)
    if settings.method == "draft":
        from pageant.actors.executor.runners.proposers.draft_model import DraftModel

        vocab_size = Checkpoint(config.model).spec().vocab_size
        return DraftModel(path, target, vocab_size, config.dtype, config.max_model_len)
    if config.shard is not None:
        target = _whole_ends(config, target)
    if settings.method == "medusa":
        from pageant.actors.executor.runners.proposers.medusa import Medusa

        return Medusa(path, target)
    return _layer(config, settings, path, target)


def _whole_ends(config: RunnerConfig, share: Decoder) -> Decoder:
    """Return the whole embedding and head of a model of which this executor has a share, in the share's dtypes."""
    ends = load_ends(
        Checkpoint(config.model),
        share.dtype,
        share.device,
        kernels=share.kernels,
        quantization=config.quantization,
        head_quantization=config.head_quantization,
    )
    ends.kv_dtype = share.kv_dtype
    return ends


def _layer(config: RunnerConfig, settings: Speculation, path: Path, target: Decoder) -> Proposer:
    from pageant.actors.executor.runners.proposers.draft_layer import DraftLayer, LayerProposer
    from pageant.models.heads.eagle import EagleHead
    from pageant.models.heads.mtp import load_mtp_layer
    from pageant.models.native import NativeDecoder

    hidden_size_of(target)
    assert isinstance(target, NativeDecoder), "it has hidden states to show"
    layer: DraftLayer
    if settings.method == "eagle":
        num_layers = Checkpoint(config.model).decoder_spec().num_layers
        layer = EagleHead(path, target, num_layers, config.max_model_len)
        _check_taps(layer.taps, config)
    else:
        layer = load_mtp_layer(Checkpoint(path), target, config.max_model_len, config.quantization)
    return LayerProposer(layer, config.max_model_len)


def _check_taps(taps: tuple[int, ...], config: RunnerConfig) -> None:
    """Refuse a head that reads layers which other stages of a pipeline compute."""
    if taps and config.shard is not None and config.shard.stage.count > 1:
        raise ConfigurationError(
            f"speculation.model reads the inputs of layers {', '.join(map(str, taps))} (EAGLE-3), and "
            f"pipeline_parallel is {config.shard.stage.count}; expected pipeline_parallel 1, or another method"
        )
