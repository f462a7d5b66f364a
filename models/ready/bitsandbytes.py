"""bitsandbytes (Dettmers et al., 2022 and 2023): numbers of a table in 4 bits, or whole numbers in 8.

In 4 bits (nf4 or fp4), a module is

- weight: uint8 [outputs * inputs / 2, 1]; the upper four bits of a byte are the number before.
- weight.quant_map: float32 [16], the numbers that four bits stand for.
- weight.absmax: float32 [blocks], what to multiply the numbers of a block by; a block is 64 of them, row after row.
- weight.quant_state.bitsandbytes__nf4: JSON in uint8 [bytes], with the block's size and the matrix's shape.

With nested scales, weight.absmax is uint8, and weight.nested_quant_map float32 [256] has the number that a byte stands
for. weight.nested_absmax float32 has the scales of 256 of those each, and the JSON an offset to add.

In 8 bits it is weight int8 [outputs, inputs] with SCB float32 [outputs]: a weight is q * SCB / 127.
Tables do not fit our layouts: weights of 4 bits are requantised to 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from pageant.models.config import Config
from pageant.models.ready.method import Method, is_part
from pageant.models.ready.module import ReadyModule, missing_part, wrong_part
from pageant.models.ready.values import check_scales
from pageant.models.tensor_files import TensorInfo, read_values

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["METHOD"]

_STATES = ("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4")
_STATE_BYTES_MAX = 1 << 16
_KINDS = ("nf4", "fp4")


@dataclass(frozen=True, kw_only=True)
class Int8RowsModule(ReadyModule):
    """Whole numbers of 8 bits, with a scale for each row."""

    def __post_init__(self) -> None:
        self.part("weight", ("I8",), (self.outputs, self.inputs))
        self.part("SCB", ("F32", "F16", "BF16"), (self.outputs,))

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return 8

    @property
    def group(self) -> int:
        return self.inputs

    @property
    def scales(self) -> TensorInfo:
        return self.parts["SCB"]

    def check_values(self) -> None:
        check_scales(self.scales, zero=True)  # of a row of zeros

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        from pageant.models.ready.grouped import Grouped

        return Grouped(parts["weight"][rows], parts["SCB"][rows].float()[:, None] / 127, self.inputs)


@dataclass(frozen=True, kw_only=True)
class TableModule(ReadyModule):
    """Numbers of a table of 16, in blocks that run on from row to row."""

    state: str
    """The part with the JSON."""

    def __post_init__(self) -> None:
        numbers = self.outputs * self.inputs
        packed = -(-numbers // 2)
        self.part("weight", ("U8",), (packed, 1), (1, packed))
        self.part("weight.quant_map", ("F32",), (16,))
        blocks = -(-numbers // self.block)
        absmax = self.part("weight.absmax", ("F32", "U8"), (blocks,))
        if absmax.dtype == "U8":
            self.part("weight.nested_quant_map", ("F32",), (256,))
            self.part("weight.nested_absmax", ("F32",), (-(-blocks // self.nested_block),))

    @cached_property
    def facts(self) -> Mapping[str, Any]:
        """The JSON of the module."""
        info = self.parts[self.state]
        try:
            if info.dtype != "U8" or info.num_bytes > _STATE_BYTES_MAX:
                raise ValueError(f"{info.num_bytes} bytes of {info.dtype}")
            facts = json.loads(bytes(np.asarray(read_values(info)).tobytes()))
            shape, kind = list(facts["shape"]), facts["quant_type"]
            sizes = facts["blocksize"], facts.get("nested_blocksize", 256), facts.get("nested_offset", 0.0)
            if not all(type(size) is int and size > 0 for size in sizes[:2]) or kind not in _KINDS:
                raise ValueError(f"quant_type {kind!r} and blocks of {sizes[0]!r} and {sizes[1]!r}")
            if not np.isfinite(float(sizes[2])):
                raise ValueError(f"nested_offset {sizes[2]!r}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise wrong_part(info, f"no state of a quantised weight ({error!r:.200})", "its JSON") from error
        if shape != [self.outputs, self.inputs]:
            raise wrong_part(info, f"shape {shape!r:.80}", f"[{self.outputs}, {self.inputs}]")
        return facts  # type: ignore[no-any-return]

    @property
    def block(self) -> int:
        """Numbers that share a scale."""
        return int(self.facts["blocksize"])

    @property
    def nested_block(self) -> int:
        """Scales that share a scale of their own."""
        return int(self.facts.get("nested_blocksize", 256))

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return None

    @property
    def group(self) -> int:
        return self.block if self.inputs % self.block == 0 else 1

    @property
    def scales(self) -> TensorInfo:
        return self.parts["weight.absmax"]

    def check_values(self) -> None:
        # A block of zeros has a scale of zero; nested ones have an offset, and may be anything that is finite.
        role = "weight.nested_absmax" if self.scales.dtype == "U8" else "weight.absmax"
        check_scales(self.parts[role], zero=True)
        for table in ("weight.quant_map", "weight.nested_quant_map"):
            info = self.parts.get(table)
            if info is not None and not np.isfinite(read_values(info)).all():
                raise wrong_part(info, "numbers that are not finite", "a table of finite numbers")

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped

        start, stop = rows.start * self.inputs, rows.stop * self.inputs  # even: rows begin at multiples of 64
        packed = parts["weight"].view(-1)[start // 2 : -(-stop // 2)]
        numbers = torch.stack((packed >> 4, packed & 15), dim=-1).view(-1)[: stop - start]
        values = parts["weight.quant_map"][numbers.long()].view(-1, self.inputs)
        if self.group == 1:
            blocks = torch.arange(start, stop) // self.block
        else:
            blocks = torch.arange(start // self.block, stop // self.block)
        return Grouped(values, self._scales(parts, blocks).view(len(values), -1), self.group)

    def _scales(self, parts: Mapping[str, Tensor], blocks: Tensor) -> Tensor:
        """Return the scales of some blocks, int64 [n]: float32 [n]."""
        absmax = parts["weight.absmax"][blocks]
        if self.scales.dtype != "U8":
            return absmax
        nested = parts["weight.nested_absmax"][blocks // self.nested_block]
        scales: Tensor = parts["weight.nested_quant_map"][absmax.long()] * nested
        return scales + float(self.facts.get("nested_offset", 0.0))


class BitsAndBytes(Method):
    """See the module."""

    title = "bitsandbytes"
    suffixes = (
        *("SCB", "weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"),
        *_STATES,
    )
    ignored = (".weight_format",)

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        kind = config.text("bnb_4bit_quant_type", "nf4")
        self._is_4_bits = config.flag("load_in_4bit")
        if self._is_4_bits == config.flag("load_in_8bit"):
            raise config.wrong("load_in_4bit", self._is_4_bits, "either load_in_4bit or load_in_8bit")
        if kind not in _KINDS:
            raise config.wrong("bnb_4bit_quant_type", kind, " or ".join(_KINDS))
        config.refuse("bnb_4bit_quant_storage", "uint8", "Save it with bnb_4bit_quant_storage uint8.")
        self._excluded = config.texts("llm_int8_skip_modules")

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        whole: dict[str, Any] = {"name": name, "outputs": outputs, "inputs": inputs, "parts": parts}
        if not self._is_4_bits:
            return Int8RowsModule(**whole)
        state = next((role for role in _STATES if role in parts), None)
        if state is None:
            raise missing_part(name, _STATES[0], parts)
        return TableModule(**whole, state=state)

    def excludes(self, name: str) -> bool:
        return any(is_part(part, name) for part in self._excluded)

    def expects(self, name: str) -> bool:
        # Heads and embeddings are left out without a word.
        return ".layers." in f".{name}" and not self.excludes(name)


METHOD = BitsAndBytes
