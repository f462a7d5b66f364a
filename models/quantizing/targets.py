"""The linear maps of a checkpoint that are quantised. Knows no torch."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pageant.models.checkpoint import Checkpoint
from pageant.models.errors import CheckpointError
from pageant.models.quantization import is_quantisable
from pageant.models.ready.method import pattern_expected
from pageant.models.ready.weights import Key
from pageant.models.tensor_files import TensorInfo
from pageant.models.weights import Place
from pageant.protocol.errors import ArgumentError

__all__ = ["Selection", "Target", "select"]

_HEAD = "lm_head"
_SMALL = ("router.weight", "shared_switch.weight")
_REGEX = "re:"


@dataclass(frozen=True, slots=True)
class Target:
    """A linear map that is quantised: one module of the checkpoint, one part of a fused weight here."""

    name: str
    """The module's name, as it is saved."""
    info: TensorInfo
    place: Place

    @property
    def outputs(self) -> int:
        """Rows of the weight."""
        return self.place.outputs

    @property
    def inputs(self) -> int:
        """Columns of the weight."""
        return self.place.inputs

    @property
    def key(self) -> Key:
        """The fused weight."""
        return self.place.layer, self.place.name


@dataclass(frozen=True, slots=True)
class Selection:
    """The linear maps of a checkpoint, sorted out."""

    targets: tuple[Target, ...]
    """In the order of the layers."""
    ignored: tuple[str, ...]
    """Modules that stay as they are, by the names that readers may have for them."""

    @property
    def by_tensor(self) -> Mapping[str, Target]:
        """The targets by the names of their weights' tensors."""
        return {target.info.name: target for target in self.targets}


def select(checkpoint: Checkpoint, ignore: Sequence[str]) -> Selection:
    """Return all linear maps of the layers but those to ignore. Heads, embeddings and routers are never quantised.

    ignore: modules by name, or regular expressions after "re:" that match from the start of a name.

    Raises CheckpointError for a checkpoint that cannot be quantised, and ArgumentError for an entry of `ignore` that
    matches nothing or only a part of a fused weight.
    """
    _refuse(checkpoint)
    candidates, small = _candidates(checkpoint)
    unmatched = [entry for entry in ignore if not _chosen(entry, [*candidates, *small])]
    if unmatched:
        some = ", ".join(target.name for target in candidates[:2])
        raise ArgumentError(
            "ignore",
            f"found {unmatched[0]!r}, which names no linear map; expected a name such as {some}, or a regular "
            f"expression after {_REGEX!r}",
        )
    ignored = {target.name for entry in ignore for target in _chosen(entry, [*candidates, *small])}
    _refuse_halves(candidates, ignored)
    targets = tuple(target for target in candidates if target.name not in ignored)
    if not targets:
        raise ArgumentError("ignore", "found entries that name every linear map; expected some to be left")
    kept = {*ignored, *(target.name for target in small), *_heads(checkpoint)}
    return Selection(targets, tuple(sorted(kept)))


def _refuse(checkpoint: Checkpoint) -> None:
    if checkpoint.quantization_method is not None:
        raise CheckpointError(
            checkpoint.path,
            f"weights that are quantised already ({checkpoint.quantization_method})",
            "a model's original weights",
            "Quantise the checkpoint that it was made from.",
        )
    if checkpoint.architecture is None:
        name = ", ".join(map(str, checkpoint.config.get("architectures") or ["no architecture"]))
        raise CheckpointError(
            checkpoint.path,
            f"{name}, which transformers runs",
            "a model that a file in models/architectures describes",
            "Add such a file, or use another model.",
        )
    if checkpoint.architecture.names.stacks:
        raise CheckpointError(
            checkpoint.path,
            f"{checkpoint.architecture.name}, whose experts are saved in stacks",
            "a model that has each expert's weights in tensors of their own",
            "Such a model cannot be quantised here in this version: use another.",
        )


def _candidates(checkpoint: Checkpoint) -> tuple[list[Target], list[Target]]:
    """Return the linear maps that may be quantised, in the order of the layers, and those that never are."""
    large: list[Target] = []
    small: list[Target] = []
    tensors = checkpoint.tensors
    for weight, place in checkpoint.decoder()[1].items():
        if not weight.endswith(".weight") or len(place.shape) != 2:
            continue
        info = tensors[weight]
        target = Target(info.name.removesuffix(".weight"), info, place)
        if is_quantisable(place.name) and place.layer is not None:
            large.append(target)
        elif place.name in _SMALL:
            small.append(target)
    return large, small


def _heads(checkpoint: Checkpoint) -> set[str]:
    """Names that readers may have for the head, which is never quantised: it may be the embedding."""
    assert checkpoint.architecture is not None
    prefixes = checkpoint.architecture.names.prefixes
    others = {old.rstrip(".") for old, new in prefixes.items() if new.startswith(f"{_HEAD}.")}
    return {_HEAD, *others}


def _chosen(entry: str, targets: Iterable[Target]) -> list[Target]:
    """Return the modules that an entry of an ignore list means."""
    if not entry.startswith(_REGEX):
        return [target for target in targets if target.name == entry]
    pattern = entry.removeprefix(_REGEX)
    expected = pattern_expected(pattern)
    if expected is not None:
        raise ArgumentError("ignore", f"found {entry!r}; expected {expected}")
    return [target for target in targets if re.match(pattern, target.name)]


def _refuse_halves(targets: Sequence[Target], ignored: set[str]) -> None:
    """Raise ArgumentError where some parts of a fused weight would be quantised and others not.

    Engines multiply queries, keys and values at once, gate and up, and all experts of a layer.
    """
    fused: defaultdict[tuple[int | None, str], list[str]] = defaultdict(list)
    for target in targets:
        layer, name = target.key
        fused[layer, "experts" if name.startswith("expert_") else name].append(target.name)
    for names in fused.values():
        named = [name for name in names if name in ignored]
        left = [name for name in names if name not in ignored]
        if named and left:
            listed = ", ".join(left[:3]) + (f" and {len(left) - 3} more" if len(left) > 3 else "")
            raise ArgumentError(
                "ignore",
                f"found {named[0]}, but not {listed}; expected all or none, since they are multiplied at once",
            )
