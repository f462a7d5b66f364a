"""compressed-tensors, as llm-compressor saves it: each group of modules by a scheme of its own.

- pack-quantized: weight_packed int32 [outputs, inputs * bits / 32] and weight_scale [outputs, groups]. Numbers are
  raised by 2 ** (bits - 1), and packed along inputs from a word's lowest bits up. weight_shape int64 [2] has the
  shape. An asymmetric module has weight_zero_point int32 [outputs * bits / 32, groups], raised and packed along
  outputs; one with act-order has weight_g_idx int32 [inputs].
- int-quantized: weight int8 [outputs, inputs]; weight_scale [outputs, 1] or one number.
- float-quantized: weight float8_e4m3, as in `fp8`; scales of rows, blocks or the tensor are to multiply by.
- mxfp4-pack-quantized: weight_packed uint8 [outputs, inputs / 2]; weight_scale uint8 [outputs, inputs / 32]: `mxfp4`.

A weight is scale * (q - zero). Scales of activations and of the KV cache are ignored: both stay as they are here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pageant.models.config import Config
from pageant.models.ready.fp8 import Float8Module, read_block
from pageant.models.ready.integers import Int8Module, PackedModule
from pageant.models.ready.method import Method, read_group_size, read_pattern
from pageant.models.ready.module import ReadyModule, wrong_part
from pageant.models.ready.mxfp4 import MicroscaledModule
from pageant.models.tensor_files import TensorInfo

__all__ = ["METHOD"]

_FORMATS = (
    *("pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "mxfp4-pack-quantized"),
    *("mixed-precision", "dense"),
)
_STRATEGIES = ("tensor", "channel", "group", "block")
_CONVERT = "Quantise the model again with one of these schemes."


@dataclass(frozen=True, slots=True)
class _Scheme:
    """The quantisation of one group of modules."""

    targets: tuple[str, ...]
    format: str
    bits: int
    is_float: bool
    symmetric: bool
    group_size: int | None
    """Inputs that share a scale; None: a row, a block or the tensor has one."""
    block: tuple[int, int] | None


class CompressedTensors(Method):
    """See the module."""

    title = "compressed-tensors"
    suffixes = (
        "weight_packed",
        "weight_scale",
        "weight_shape",
        "weight_zero_point",
        "weight_g_idx",
        "weight_global_scale",
    )
    ignored = (".input_scale", ".input_zero_point", ".input_global_scale", ".output_zero_point")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        for key in ("sparsity_config", "transform_config"):
            section = config.values.get(key)
            if section and section != {"format": "dense"}:
                raise config.wrong(
                    key, section, "none: neither sparse nor rotated weights are read", _CONVERT
                )
        groups = config.section("config_groups")
        default = config.text("format", "mixed-precision")
        self._schemes = [_read(groups.section(name), default) for name in groups.values]
        if not self._schemes:
            raise config.wrong("config_groups", config.values.get("config_groups"), "at least one group")
        self._ignored = config.texts("ignore")
        for pattern in (*self._ignored, *(target for scheme in self._schemes for target in scheme.targets)):
            if pattern.startswith("re:"):
                read_pattern(config, "ignore", pattern.removeprefix("re:"))

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        scheme = self._scheme_of(name)
        assert scheme is not None, "modules without a scheme are excluded"
        whole: dict[str, Any] = {"name": name, "outputs": outputs, "inputs": inputs, "parts": parts}
        packed, weight = parts.get("weight_packed"), parts.get("weight")
        self._check_kind(scheme, packed, weight, parts)
        if packed is not None and not scheme.is_float:
            return PackedModule(
                **whole, width=scheme.bits, symmetric=scheme.symmetric, group_size=scheme.group_size
            )
        if packed is not None:
            return MicroscaledModule(**whole, packed="weight_packed", exponents="weight_scale")
        if scheme.is_float:
            return Float8Module(**whole, block=scheme.block, role="weight_scale")
        return Int8Module(**whole, symmetric=scheme.symmetric, group_size=scheme.group_size)

    def _check_kind(
        self,
        scheme: _Scheme,
        packed: TensorInfo | None,
        weight: TensorInfo | None,
        parts: Mapping[str, TensorInfo],
    ) -> None:
        """Raise CheckpointError where the numbers are not of the kind that the scheme says."""
        if scheme.is_float:
            expected = ("weight_packed", "U8") if scheme.bits == 4 else ("weight", "F8_E4M3")
        else:
            expected = (
                ("weight", "I8")
                if scheme.format in ("int-quantized", "naive-quantized")
                else ("weight_packed", "I32")
            )
        found = packed or weight
        kind = "floating-point" if scheme.is_float else "whole"
        if found is None:
            some = next(iter(parts.values()))
            raise wrong_part(some, f"no {expected[0]} beside it", f"{scheme.bits}-bit {kind} numbers")
        role = "weight_packed" if packed is not None else "weight"
        if (role, found.dtype) != expected:
            said = f"{expected[1]} numbers in {expected[0]}: {scheme.bits}-bit {kind} ones ({scheme.format})"
            raise wrong_part(found, f"dtype {found.dtype}", said)

    def excludes(self, name: str) -> bool:
        return self._scheme_of(name) is None

    def _scheme_of(self, name: str) -> _Scheme | None:
        if any(_matches(name, pattern) for pattern in self._ignored):
            return None
        return next((scheme for pattern, scheme in self._by_rank() if _matches(name, pattern)), None)

    def _by_rank(self) -> Iterator[tuple[str, _Scheme]]:
        """All targets with their schemes: names before patterns, and patterns before classes."""
        pairs = [(target, scheme) for scheme in self._schemes for target in scheme.targets]
        return iter(sorted(pairs, key=lambda pair: _rank(pair[0])))


def _read(group: Config, default: str) -> _Scheme:
    """Read one of the configuration's groups."""
    form = group.text("format", default)
    if form not in _FORMATS:
        raise group.wrong("format", form, f"one of {', '.join(_FORMATS)}", _CONVERT)
    weights = group.section("weights")
    bits, kind = weights.count("num_bits"), weights.text("type", "int")
    strategy = weights.text("strategy", "tensor")
    if kind not in ("int", "float") or bits not in (4, 8):
        raise weights.wrong("num_bits", bits, f"4 or 8, of type int or float (type is {kind!r})", _CONVERT)
    if strategy not in _STRATEGIES:
        raise weights.wrong("strategy", strategy, f"one of {', '.join(_STRATEGIES)}", _CONVERT)
    group_size = read_group_size(weights) if strategy == "group" else None
    if kind == "float" and bits == 4 and group_size != 32:
        raise weights.wrong("group_size", group_size, "32, as MXFP4 has it", _CONVERT)
    if kind == "float" and bits == 8 and strategy == "group":
        raise weights.wrong("strategy", strategy, "tensor, channel or block for FP8", _CONVERT)
    block = read_block(weights, "block_structure") if strategy == "block" else None
    targets = group.texts("targets")
    return _Scheme(targets, form, bits, kind == "float", weights.flag("symmetric", True), group_size, block)


def _rank(pattern: str) -> int:
    if pattern.startswith("re:"):
        return 1
    return 2 if pattern.endswith("Linear") else 0


def _matches(name: str, pattern: str) -> bool:
    """Tell whether a pattern means a module: its name, a regular expression, or the class of all linear maps."""
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), name) is not None
    return pattern == name or pattern.endswith("Linear")


METHOD = CompressedTensors
