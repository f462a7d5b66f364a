"""The configuration that says how a checkpoint was quantised: where it lies, and which format it names."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from pageant.models.config import Config, read_json
from pageant.models.errors import CheckpointError
from pageant.models.ready.module import ReadyModule
from pageant.models.tensor_files import TensorInfo
from pageant.protocol.errors import TopologyError
from pageant.protocol.plugins import load_plugin, plugins_of

__all__ = [
    "QUANTISED",
    "Method",
    "find_method",
    "is_part",
    "pattern_expected",
    "read_group_size",
    "read_pattern",
]

_FORMATS = {
    "gptq": "gptq",
    "awq": "awq",
    "compressed-tensors": "compressed_tensors",
    "fp8": "fp8",
    "fbgemm_fp8": "fp8",
    "modelopt": "modelopt",
    "bitsandbytes": "bitsandbytes",
    "mxfp4": "mxfp4",
    "gguf": "gguf",
}
"""The module of this package for each `quant_method`."""
QUANTISED = (
    *(".qweight", ".qzeros", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".weight_scale_2"),
    *(".absmax", ".SCB", "_blocks", ".blocks", ".weight_zero_point", ".g_idx"),
)
"""How the names of tensors end that no dense checkpoint has."""
_USE = "Use a checkpoint in one of these formats, or the model's original one."
_AGREE = "Keep the one that the weights were made with."
_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Files beside config.json in which quantisers wrote what later went into its quantization_config."""
_PATTERN_MAX = 1000  # characters
_NESTED = re.compile(r"[*+}][^()]*\)+[*+{]")
_ALIASES = {"w_bit": "bits", "q_group_size": "group_size"}
_COMPARED = (
    *("quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format", "zero_point", "version"),
    *("quant_algo", "kv_cache_quant_algo"),
)


class Method(ABC):
    """A format, with a checkpoint's configuration of it. Making one reads the configuration, and no tensor.

    Raises CheckpointError for a configuration that makes no sense or asks for what is not supported.
    """

    title: str
    """The format's name, for messages."""
    suffixes: ClassVar[tuple[str, ...]]
    """What follows a module's name in those of its tensors, bias apart."""
    ignored: ClassVar[tuple[str, ...]] = ()
    """How names of further tensors end that change nothing here, such as scales of activations."""

    dequantised_numbers_max: ClassVar[int] = 0
    """Numbers of weights that would be requantised, up to which they are dequantised into the model's dtype instead."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def module(self, name: str, outputs: int, inputs: int, parts: Mapping[str, TensorInfo]) -> ReadyModule:
        """Return a module that has at least one tensor which a dense one would not have.

        Raises CheckpointError for parts that are missing, misshapen, or against the configuration.
        """

    @abstractmethod
    def excludes(self, name: str) -> bool:
        """Return whether the configuration says that a module is not quantised."""

    def expects(self, name: str) -> bool:
        """Return whether the configuration says that a module is quantised."""
        return not self.excludes(name)


def find_method(config: Config) -> Method | None:
    """Return what config.json, or a file of a quantiser beside it, says; None where no file says anything.

    Raises CheckpointError for a format that is not known here, and for two files that disagree.
    """
    found: Config | None = None
    for section in _sections(config):
        if found is not None:
            _compare(found, section)
        found = found or section
    if found is None:
        return None
    method = found.values.get("quant_method", "unnamed")
    module = _FORMATS.get(str(method).lower())
    added = load_plugin("formats", str(method).lower()) if module is None else None
    if added is not None:
        return _checked(added, str(method))(found)
    if module is None:
        raise CheckpointError(
            found.path,
            f"quantization_config with the method {method!r:.80}",
            f"one of {', '.join((*_FORMATS, *plugins_of('formats')))}, or unquantised weights",
            _USE,
        )
    made: Method = import_module(f"pageant.models.ready.{module}").METHOD(found)
    return made


def _checked(added: Any, name: str) -> type[Method]:
    """Return a plugin's class. Raises TopologyError where it is no Method."""
    if isinstance(added, type) and issubclass(added, Method):
        return added
    raise TopologyError(f"plugin {name!r}", f"found {added!r:.80}; expected a subclass of Method")


def _sections(config: Config) -> list[Config]:
    """All configurations of a quantiser, that of config.json first, with keys and values as it writes them."""
    found = []
    for holder in (config, config.section("text_config")):
        # compressed-tensors had a key of its own once.
        if "quantization_config" in holder or "compression_config" in holder:
            found.append(holder.section("quantization_config", "compression_config"))
    for name in _FILES:
        path = config.path.with_name(name)
        if path.is_file():
            found.append(Config(read_json(path), path))
    return [_normal(section) for section in found]


def _normal(section: Config) -> Config:
    values: dict[str, Any] = {_ALIASES.get(key, key): value for key, value in section.values.items()}
    if section.path.name == "hf_quant_config.json":
        quantization = section.section("quantization")
        values = {"quant_method": "modelopt", **quantization.values}
    elif section.path.name in _FILES:
        values.setdefault("quant_method", "awq" if "version" in values else "gptq")
    prefix = "quantization_config." if section.path.name == "config.json" else ""
    return Config(values, section.path, prefix)


def _compare(first: Config, second: Config) -> None:
    for key in _COMPARED:
        ours, theirs = first.values.get(key), second.values.get(key)
        if None not in (ours, theirs) and str(ours).lower() != str(theirs).lower():
            raise second.wrong(key, theirs, f"{ours!r}, as {first.path.name} has it", _AGREE)


def is_part(part: str, name: str) -> bool:
    """Tell whether a list's entry means a module: some of the words of its name, of which dots are between."""
    return f".{part}." in f".{name}."


def read_pattern(config: Config, key: str, pattern: str) -> re.Pattern[str]:
    """Return a regular expression for modules' names.

    Raises CheckpointError for one that is none, or that could take for ever: a repetition of a repetition.
    """
    expected = pattern_expected(pattern)
    if expected is not None:
        raise config.wrong(key, pattern, expected)
    return re.compile(pattern)


def pattern_expected(pattern: str) -> str | None:
    """Return what is expected of a pattern that is no regular expression, or could take for ever; None: it is fine."""
    if len(pattern) > _PATTERN_MAX or _NESTED.search(pattern):
        return "a regular expression without repetitions of repetitions"
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return f"a regular expression ({error})"
    return None


def read_group_size(config: Config, key: str = "group_size") -> int | None:
    """Return the inputs that share a scale; None is all of them, which is written as -1."""
    size = config.values.get(key)
    if type(size) is not int or (size < 1 and size != -1):
        raise config.wrong(key, size, "a whole number from 1 up, or -1 for whole rows")
    return None if size == -1 else size
