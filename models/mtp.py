"""The layer of a checkpoint that drafts (multi-token prediction, MTP), as far as it can be known without loading it.

After the model's last layer such a layer guesses the token after the next one (DeepSeek-AI, DeepSeek-V3, 2024). It
reads the hidden state of a token and the embedding of the token behind it. Both are normalised and projected to the
width of the stream together; a decoder layer of the family and a norm follow, and the model's own head.

Checkpoints of DeepSeek-V3 and GLM-4.5 have it as a layer behind the last that the configuration counts, with copies of
embedding and head. Those of Qwen have a module `mtp`. Knows no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pageant.models import architectures
from pageant.models.architectures.common import MTPNames
from pageant.models.checkpoint import Checkpoint
from pageant.models.config import Config
from pageant.models.errors import CheckpointError
from pageant.models.names import Names
from pageant.models.ready import QUANTISED, ReadyWeights, find_method
from pageant.models.spec import DecoderSpec
from pageant.models.tensor_checks import DTYPES, check_tensors
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Places

__all__ = ["MTPWeights", "find_mtp"]

_ANOTHER = "Choose another speculation.method, as ngram."


@dataclass(frozen=True, eq=False)
class MTPWeights:
    """The tensors of the layer, and where each goes in a decoder of that layer alone."""

    path: Path
    """The checkpoint's folder."""
    weight_files: tuple[Path, ...]
    """All files of the checkpoint."""
    names: Names
    spec: DecoderSpec
    """Of one layer, without embedding and head."""
    places: Places
    tensors: Mapping[str, TensorInfo]
    """The layer's alone, by canonical names."""
    ready: ReadyWeights | None
    """Its quantised modules; None where it has none, whatever the other layers have."""


def find_mtp(checkpoint: Checkpoint) -> MTPWeights:
    """Find the layer that drafts in a checkpoint, and check its tensors. Reads headers.

    Raises:
        CheckpointError: it has none, or several, or one that is not whole.
    """
    family = checkpoint.architecture
    if family is None or family.mtp is None or checkpoint.is_gguf:
        known = (one.name for one in architectures.ARCHITECTURES.values() if one.mtp is not None)
        found = "a GGUF file" if checkpoint.is_gguf else str(checkpoint.config["architectures"][0])
        raise CheckpointError(
            checkpoint.path,
            f"{found}, of which no layer that drafts (MTP) is known here",
            f"a folder with safetensors of one of {', '.join(known)}",
            _ANOTHER,
        )
    model = checkpoint.decoder_spec()
    number = model.num_layers if family.mtp.follows else 0
    prefix = family.mtp.prefix.format(layer=number)
    tensors = {name: info for name, info in checkpoint.tensors.items() if name.startswith(prefix)}
    if not tensors:
        raise CheckpointError(
            checkpoint.path,
            f"no tensors {prefix}*",
            "those of a layer that drafts (MTP)",
            f"transformers leaves them out where it saves a model: use the original checkpoint. {_ANOTHER}",
        )
    _refuse_several(checkpoint, family.mtp, number)
    spec, names = _spec(model), _names(family.names, family.mtp, number)
    places = names.places(spec)
    ready = None
    method = find_method(Config(checkpoint.config, checkpoint.path / "config.json"))
    if method is not None and any(map(_is_quantised, tensors.values())):
        ready = ReadyWeights.find(method, places, tensors)
    weights = MTPWeights(checkpoint.path, checkpoint.weight_files, names, spec, places, tensors, ready)
    check_tensors(weights, places, tied=False)
    return weights


def _is_quantised(info: TensorInfo) -> bool:
    return info.name.endswith(QUANTISED) or info.dtype not in DTYPES


def _refuse_several(checkpoint: Checkpoint, names: MTPNames, number: int) -> None:
    further = names.layer_prefix.format(layer=number + 1)
    if any(name.startswith(further) for name in checkpoint.tensors):
        raise CheckpointError(
            checkpoint.path,
            f"a second layer that drafts (MTP), {further}*",
            "one, which guesses further tokens from its own hidden states",
            _ANOTHER,
        )


def _spec(model: DecoderSpec) -> DecoderSpec:
    """Return a decoder of the layer alone: it attends, and is otherwise as the model's last layer that does."""
    layer = next(one for one in reversed(model.layers) if one.attends and one.recurrent is None and one.mlp)
    return replace(
        model, layers=(layer,), joins=True, begins=False, has_head=False, tie_word_embeddings=False
    )


def _names(family: Names, mtp: MTPNames, number: int) -> Names:
    prefix = mtp.prefix.format(layer=number)
    return replace(
        family,
        model={prefix + theirs: ours for theirs, ours in mtp.modules.items()},
        layer_prefix=mtp.layer_prefix.format(layer=number),
        ignored_modules=tuple(prefix + copy for copy in mtp.copies),
        ignores_later_layers=False,
    )
