"""FP8 as NVIDIA's ModelOpt exports it: e4m3 with a scale for the tensor, and scales of activations, which are ignored.

- weight: float8_e4m3 [outputs, inputs].
- weight_scale: float32, one number to multiply by.

Its configuration is hf_quant_config.json, or quantization_config with `quant_algo`. Modules are excluded by wildcards.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping

from pageant.models.config import Config
from pageant.models.ready.fp8 import IGNORED, Float8Module
from pageant.models.ready.method import Method
from pageant.models.ready.module import ReadyModule
from pageant.models.tensor_files import TensorInfo

__all__ = ["METHOD"]


class ModelOpt(Method):
    """See the module."""

    title = "ModelOpt FP8"
    suffixes = ("weight_scale", "weight_scale_2")
    ignored = IGNORED

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        algorithm = config.text("quant_algo")
        if algorithm.upper() != "FP8":
            remedy = "Use a checkpoint of FP8 weights, or the model's original one."
            raise config.wrong("quant_algo", algorithm, "FP8", remedy)
        self._excluded = (*config.texts("exclude_modules"), *config.texts("ignore"))

    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        return Float8Module(
            name=name, outputs=outputs, inputs=inputs, parts=parts, block=None, role="weight_scale"
        )

    def excludes(self, name: str) -> bool:
        return any(
            fnmatch.fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in self._excluded
        )

    def expects(self, name: str) -> bool:
        # Heads and embeddings are left out without a word.
        return ".layers." in f".{name}" and not self.excludes(name)


METHOD = ModelOpt
