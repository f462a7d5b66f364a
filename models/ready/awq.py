"""AWQ (Lin et al., 2023) as AutoAWQ's GEMM kernels read it: 4 bits, packed along outputs.

    qweight   int32 [inputs, outputs / 8]   number [0, 2, 4, 6, 1, 3, 5, 7][j] of a word lies at its bit 4 j
    qzeros    int32 [groups, outputs / 8]   likewise
    scales    float16 or bfloat16 [groups, outputs]

A weight is scales[g, o] * (q[i, o] - zero[g, o]). What AWQ does to activations is in the norms and weights before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pageant.models.config import Config
from pageant.models.ready.method import Method, is_part, read_group_size
from pageant.models.ready.module import ReadyModule, wrong_part
from pageant.models.ready.values import check_scales
from pageant.models.tensor_files import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

    from pageant.models.ready.grouped import Grouped

__all__ = ["METHOD"]

_PER_WORD = 8
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word, counted from its lowest four bits, its first number lies, its second, and so on."""
_CONVERT = "Quantise the model again with 4 bits and version gemm."


@dataclass(frozen=True, kw_only=True)
class AWQModule(ReadyModule):
    """A module in AWQ's layout."""

    group_size: int | None

    def __post_init__(self) -> None:
        if self.inputs % self.group or self.outputs % _PER_WORD:
            raise wrong_part(
                next(iter(self.parts.values())),
                f"{self.inputs} inputs and {self.outputs} outputs",
                f"a multiple of the group size, {self.group}, and of the {_PER_WORD} numbers of a word",
            )
        groups, words = self.inputs // self.group, self.outputs // _PER_WORD
        self.part("qweight", ("I32",), (self.inputs, words))
        self.part("qzeros", ("I32",), (groups, words))
        self.part("scales", ("F16", "BF16", "F32"), (groups, self.outputs))

    @property
    def described(self) -> str:
        return f"{super().described}, 4 bits, group size {self.group}"

    @property
    def bits(self) -> Literal[8, 5, 4] | None:
        return 5

    @property
    def group(self) -> int:
        return self.group_size or self.inputs

    @property
    def scales(self) -> TensorInfo:
        return self.parts["scales"]

    def check_values(self) -> None:
        check_scales(self.scales)

    def decode(self, parts: Mapping[str, Tensor], rows: slice) -> Grouped:
        import torch

        from pageant.models.ready.grouped import Grouped
        from pageant.models.ready.unpacking import words_along_outputs

        def numbers(words: Tensor) -> Tensor:
            some = words[:, rows.start // _PER_WORD : -(-rows.stop // _PER_WORD)]
            found = torch.unflatten(words_along_outputs(some, 4), 1, (-1, _PER_WORD))
            return found[:, :, list(_PLACES)].flatten(1).T.view(torch.int8)

        values, zeros = numbers(parts["qweight"]).contiguous(), numbers(parts["qzeros"])
        torch.unflatten(values, 1, (-1, self.group)).sub_(zeros[:, :, None])
        return Grouped(values, parts["scales"][:, rows].T.float().contiguous(), self.group)


class AWQ(Method):
    """Configuration of an AWQ checkpoint: its group size, and the modules that are not quantised."""

    title = "AWQ"
    suffixes = ("qweight", "qzeros", "scales")

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        version = config.text("version", config.text("format", config.text("checkpoint_format", "gemm")))
        if version.lower() != "gemm":
            raise config.wrong("version", version, "gemm", _CONVERT)
        if config.count("bits") != 4:
            raise config.wrong("bits", config.count("bits"), "4", _CONVERT)
        self._group_size = read_group_size(config)
        self._excluded = config.texts("modules_to_not_convert")

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        return AWQModule(name=name, outputs=outputs, inputs=inputs, parts=parts, group_size=self._group_size)

    def excludes(self, name: str) -> bool:
        # AutoAWQ takes any part of a name, and lists `gate` for routers: gate_proj may be quantised all the same.
        return any(is_part(part, name) for part in self._excluded)

    def expects(self, name: str) -> bool:
        # Heads and embeddings are left out without a word.
        return ".layers." in f".{name}" and not any(part in name for part in self._excluded)


METHOD = AWQ
