"""GPTQ (Frantar et al., 2022) as AutoGPTQ and GPTQModel save it: 4 or 8 bits, packed along inputs.

A module of `bits` bits is

- qweight: int32 [inputs * bits / 32, outputs]; number j of a word lies at its bit j * bits.
- qzeros: int32 [groups, outputs * bits / 32], packed likewise, along outputs.
- scales: float16 [groups, outputs].
- g_idx: int32 [inputs], the group of each input; may be absent where groups follow one another.

Its weight is scales[g, o] * (q[i, o] - zero[g, o]). Version 1 of the format stores zero - 1, subtracted from whole
words, and version 2 zero itself. Some tools write version 2's zeros under version 1's name. So a symmetric module's
zero is taken for what it must be, 2 ** (bits - 1), and the stored ones need only all be that of one version.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from pageant.models.config import Config
from pageant.models.ready.method import Method, read_group_size, read_pattern
from pageant.models.ready.module import ReadyModule, wrong_part
from pageant.models.ready.values import check_scales, read_groups
from pageant.models.tensor_files import TensorInfo, read_values

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["METHOD"]

_BITS = (4, 8)
_ONES = {4: 0x11111111, 8: 0x01010101}
"""A word whose numbers are all 1, by their bits."""
_VERSIONS = ("gptq", "gptq_v2")
_REQUANTISE = "Quantise the model again with 4 or 8 bits."


@dataclass(frozen=True, slots=True)
class _Scheme:
    """The quantisation of modules; `dynamic` rules make others of it."""

    bits: int
    group_size: int | None
    symmetric: bool
    version_2: bool


@dataclass(frozen=True, kw_only=True)
class GPTQModule(ReadyModule):
    """A module in GPTQ's layout."""

    scheme: _Scheme

    def __post_init__(self) -> None:
        per_word = 32 // self.scheme.bits
        if self.inputs % self.group or self.inputs % per_word:
            raise wrong_part(
                next(iter(self.parts.values())),
                f"{self.inputs} inputs",
                f"a multiple of the group size, {self.group}, and of the {per_word} numbers of a word",
            )
        groups = self.inputs // self.group
        self.part("qweight", ("I32",), (self.inputs // per_word, self.outputs))
        self.part("qzeros", ("I32",), (groups, -(-self.outputs // per_word)))
        self.part("scales", ("F16", "BF16", "F32"), (groups, self.outputs))
        if "g_idx" in self.parts:
            self.part("g_idx", ("I32", "I64"), (self.inputs,))

    @property
    def described(self) -> str:
        return f"{super().described}, {self.scheme.bits} bits, group size {self.group}"

    @property
    def group(self) -> int:
        return self.scheme.group_size or self.inputs

    @property
    def scales(self) -> TensorInfo:
        return self.parts["scales"]

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        if self.scheme.symmetric:
            return 8 if self.scheme.bits == 8 else 4
        return 5 if self.scheme.bits == 4 else None

    @cached_property
    def groups(self) -> npt.NDArray[np.int64] | None:
        info = self.parts.get("g_idx")
        if info is None:
            return None
        return read_groups(info, self.group)

    def check_values(self) -> None:
        check_scales(self.scales)
        _ = self.groups
        if self.scheme.symmetric:
            self._check_zeros()

    def _check_zeros(self) -> None:
        """The zeros of a symmetric module are all one number, the same in both versions of the format but for 1."""
        info, bits = self.parts["qzeros"], self.scheme.bits
        middle = 1 << (bits - 1)
        numbers = _numbers_of(read_values(info), bits)[:, : self.outputs]
        found = np.unique(numbers)
        if len(found) != 1 or int(found[0]) not in (middle - 1, middle):
            listed = ", ".join(str(number) for number in found[:4]) + (", ..." if len(found) > 4 else "")
            expected = f"{middle - 1} (version 1) or {middle} (version 2) throughout, since sym is true"
            raise wrong_part(info, f"the zeros {listed}", expected)

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped
        from pageant.models.ready.unpacking import words_along_inputs, words_along_outputs

        bits = self.scheme.bits
        groups = None if self.groups is None else torch.from_numpy(self.groups)
        scales = parts["scales"][:, rows].T.float().contiguous()
        values = words_along_inputs(parts["qweight"][:, rows], bits)
        if self.scheme.symmetric:
            # Unsigned numbers less their middle: wrapped around, they are the signed ones.
            return Grouped((values - (1 << (bits - 1))).view(torch.int8), scales, self.group, groups)
        words = parts["qzeros"][:, rows.start * bits // 32 : -(-rows.stop * bits // 32)]
        # Makers take one from all zeros of a word at once, which borrows from the next where a zero is 0.
        words = words if self.scheme.version_2 else words + _ONES[bits]
        zeros = words_along_outputs(words, bits)[:, : values.shape[0]].T.to(torch.int16)
        wide = values.to(torch.int16)
        if groups is not None:
            wide -= zeros[:, groups]
        else:
            torch.unflatten(wide, 1, (-1, self.group)).sub_(zeros[:, :, None])
        return Grouped(wide if bits == 8 else wide.to(torch.int8), scales, self.group, groups)


class GPTQ(Method):
    """See the module."""

    title = "GPTQ"
    suffixes = ("qweight", "qzeros", "scales", "g_idx")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        version = config.text("checkpoint_format", "gptq").lower() or "gptq"
        if version not in _VERSIONS or config.flag("is_marlin_format"):
            raise config.wrong("checkpoint_format", version, " or ".join(_VERSIONS), _REQUANTISE)
        config.refuse("pack_dtype", "int32", _REQUANTISE)
        self._scheme = _read(config, _Scheme(4, None, True, version == "gptq_v2"), config.values)
        self._rules = [
            (_pattern(config, key), None if key.startswith("-:") else self._override(config, key, value))
            for key, value in config.section("dynamic").values.items()
        ]

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        scheme = self._scheme_of(name) or self._scheme
        return GPTQModule(name=name, outputs=outputs, inputs=inputs, parts=parts, scheme=scheme)

    def excludes(self, name: str) -> bool:
        return self._scheme_of(name) is None

    def expects(self, name: str) -> bool:
        # Heads, and modules of other kinds than the quantiser walks through, are left out without a word.
        return name != "lm_head" and not self.excludes(name)

    def _scheme_of(self, name: str) -> _Scheme | None:
        """The scheme of a module by the first rule that matches; None is one that is left out."""
        return next((scheme for pattern, scheme in self._rules if pattern.match(name)), self._scheme)

    def _override(self, config: Config, key: str, value: Any) -> _Scheme:
        if not isinstance(value, dict):
            raise config.section("dynamic").wrong(key, value, "an object")
        return _read(Config(value, config.path, f"quantization_config.dynamic.{key}."), self._scheme, value)


def _read(config: Config, default: _Scheme, values: Mapping[str, Any]) -> _Scheme:
    """A scheme by the keys that are there; a rule has some of them only."""
    is_rule = "dynamic." in config.prefix
    bits = config.count("bits", default.bits) if is_rule else config.count("bits")
    if bits not in _BITS:
        raise config.wrong("bits", bits, "4 or 8", _REQUANTISE)
    group_size = default.group_size if is_rule and "group_size" not in values else read_group_size(config)
    return _Scheme(bits, group_size, config.flag("sym", default.symmetric), default.version_2)


def _pattern(config: Config, key: str) -> re.Pattern[str]:
    return read_pattern(config, f"dynamic.{key}", key.removeprefix("-:").removeprefix("+:"))


def _numbers_of(words: npt.NDArray[Any], bits: int) -> npt.NDArray[np.uint8]:
    """Numbers of some bits, [R, 32 / bits * W], of words [R, W], the lowest bits first."""
    packed = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return packed
    return np.stack((packed & 15, packed >> 4), axis=-1).reshape(len(packed), -1)


METHOD = GPTQ
