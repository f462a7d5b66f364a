"""Schemes of quantisation, and their description in config.json. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pageant.models.quantizing.targets import Target
from pageant.protocol.errors import ArgumentError

__all__ = ["SCHEMES", "WHOLE_ROWS", "Scheme", "choose_scheme", "quantization_config"]

WHOLE_ROWS = -1
"""The group size that means one scale for a row."""
_UNIT = 32  # inputs that share a scale in the layouts of `pageant.kernels.quantized`
_COMMON_SIZES = (128, 64, 32)
"""Group sizes that other engines have kernels for, the one that is tried first in front."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """A way to write weights: signed integers of so many bits, and a scale for each group of a row's inputs."""

    name: str
    bits: Literal[8, 4]
    group_size: int | None
    """Inputs that share a scale; None is a whole row."""
    is_packed: bool = True
    """Whether codes are packed into words of 32 bits."""
    rounds_inputs: bool = False
    """Whether engines that follow the file round each token's activations to 8 bits, too."""
    adapts: bool = False
    """Take a smaller common group size where this one does not divide the inputs of every module."""

    @property
    def least(self) -> int:
        """The smallest code."""
        return -(1 << (self.bits - 1))

    @property
    def most(self) -> int:
        """The largest code."""
        return (1 << (self.bits - 1)) - 1

    def groups(self, inputs: int) -> int:
        """Return how many scales a row of so many inputs has."""
        return 1 if self.group_size is None else inputs // self.group_size


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme(name="w4a16", bits=4, group_size=128, adapts=True),
        Scheme(name="w8a16", bits=8, group_size=None),
        Scheme(name="w8a8", bits=8, group_size=None, is_packed=False, rounds_inputs=True),
        Scheme(name="int8", bits=8, group_size=_UNIT),
        Scheme(name="int4", bits=4, group_size=_UNIT),
    )
}


def choose_scheme(name: str, group_size: int | None, targets: Iterable[Target]) -> Scheme:
    """Return a scheme that fits all modules.

    group_size: inputs that share a scale, or WHOLE_ROWS; None is the scheme's own.

    Raises ArgumentError for an unknown scheme, and for a group size that it does not take or that divides the inputs
    of some module unevenly.
    """
    scheme = SCHEMES.get(name)
    if scheme is None:
        raise ArgumentError("scheme", f"found {name!r}; expected one of {', '.join(SCHEMES)}")
    sizes: tuple[int | None, ...] = (scheme.group_size,)
    if group_size is not None:
        sizes = (_checked(scheme, group_size),)
    elif scheme.adapts:
        sizes = _COMMON_SIZES
    targets = list(targets)
    for size in sizes:
        odd = None if size is None else next((one for one in targets if one.inputs % size), None)
        if odd is None:
            return replace(scheme, group_size=size)
    assert odd is not None
    raise ArgumentError(
        "group-size",
        f"found {size}, but {odd.name} has {odd.inputs} inputs; expected a size that divides them, {WHOLE_ROWS} "
        f"(one scale for a row), or a scheme without groups (w8a16, w8a8)",
    )


def _checked(scheme: Scheme, group_size: int) -> int | None:
    if scheme.name in ("int8", "int4") and group_size != _UNIT:
        raise ArgumentError(
            "group-size",
            f"found {group_size}; expected {_UNIT}, which {scheme.name} always has (others: w{scheme.bits}a16)",
        )
    if scheme.rounds_inputs and group_size != WHOLE_ROWS:
        raise ArgumentError(
            "group-size", f"found {group_size}; expected none, since {scheme.name} has a scale for each row"
        )
    if group_size == WHOLE_ROWS:
        return None
    if group_size < 1 or group_size % _UNIT:
        raise ArgumentError(
            "group-size",
            f"found {group_size}; expected a multiple of {_UNIT}, or {WHOLE_ROWS} for whole rows",
        )
    return group_size


def quantization_config(scheme: Scheme, ignored: Iterable[str], *, act_order: bool) -> dict[str, Any]:
    """Return the `quantization_config` of config.json, as compressed-tensors writes it.

    ignored: modules that are not quantised. act_order: whether columns were quantised by their importance; scales
    are those of the original groups, so that readers need not know it ("static").
    """
    form = "pack-quantized" if scheme.is_packed else "int-quantized"
    weights: dict[str, Any] = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if scheme.group_size is None else "group",
        "group_size": scheme.group_size,
        "dynamic": False,
        "actorder": "static" if act_order else None,
        "block_structure": None,
        "observer": "minmax",
        "observer_kwargs": {},
    }
    inputs = None
    if scheme.rounds_inputs:
        inputs = weights | {"strategy": "token", "group_size": None, "dynamic": True, "actorder": None}
        inputs["observer"] = None
    group = {
        "targets": ["Linear"],
        "format": form,
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
    }
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "config_groups": {"group_0": group},
        "ignore": sorted(ignored),
        "kv_cache_scheme": None,
        "global_compression_ratio": None,
    }
