"""Modules under vLLM's paths: `from pageant.sampling_params import SamplingParams` finds ours.

They are made when they are first imported; `pageant/__init__.py` asks here for what is no file of ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from pageant.actors.client.vllm_names.methods import EXPORTS
from pageant.actors.client.vllm_names.rows import Kind, Row
from pageant.protocol.errors import Unsupported

_CLIENT = "pageant.actors.client"
_FRONTEND = "pageant.actors.frontend"
_NAMES = f"{_CLIENT}.vllm_names"
_PROCESSING = (
    *("AdapterLogitsProcessor", "BatchUpdate", "LogitsProcessor", "MoveDirectionality"),
    *("RequestLogitsProcessor", "process_dict_updates"),
)
_POOLING = ("Pooling", "Embedding", "Classification", "Scoring")

HOMES: dict[str, str] = {
    "LLM": f"{_CLIENT}.llm",
    "LLMEngine": f"{_CLIENT}.llm_engine",
    "AsyncLLM": f"{_CLIENT}.async_llm",
    "EngineArgs": f"{_NAMES}.engine_args",
    "AsyncEngineArgs": f"{_NAMES}.engine_args",
    "FlexibleArgumentParser": f"{_NAMES}.engine_args",
    "SamplingParams": f"{_CLIENT}.sampling_params",
    "RequestOutputKind": "pageant.protocol.sampling",
    "StructuredOutputsParams": "pageant.protocol.structured_outputs",
    "BeamSearchParams": f"{_CLIENT}.beams",
    "BeamSearchOutput": f"{_FRONTEND}.beam_search",
    "BeamSearchSequence": f"{_FRONTEND}.beam_search",
    "RequestOutput": f"{_CLIENT}.outputs",
    "CompletionOutput": f"{_CLIENT}.outputs",
    "PoolingParams": "pageant.protocol.pooling",
    **dict.fromkeys(
        (
            *("PoolingOutput", "PoolingRequestOutput", "EmbeddingOutput", "EmbeddingRequestOutput"),
            *("ClassificationOutput", "ClassificationRequestOutput", "ScoringOutput", "ScoringRequestOutput"),
        ),
        f"{_CLIENT}.pooling_outputs",
    ),
    "Logprob": f"{_FRONTEND}.outputs",
    "LoRARequest": f"{_CLIENT}.lora",
    "TextPrompt": f"{_CLIENT}.prompt_types",
    "TokensPrompt": f"{_CLIENT}.prompt_types",
    "EmbedsPrompt": f"{_CLIENT}.prompt_types",
    "PromptType": f"{_CLIENT}.prompt_types",
    **dict.fromkeys(("Counter", "Gauge", "Histogram", "Metric", "Vector"), f"{_CLIENT}.metrics"),
    **dict.fromkeys(_PROCESSING, "pageant.protocol.logits_processing"),
    **dict.fromkeys(
        ("UsageContext", "cleanup_dist_env_and_memory", "init_logger", "tensor2base64"), f"{_NAMES}.helpers"
    ),
}
"""By public name, the module of ours that has it."""
ALIASES = {"AsyncLLMEngine": "AsyncLLM", "GuidedDecodingParams": "StructuredOutputsParams"}
"""Second names of the same class."""
CONFIGS = (
    *(
        "AttentionConfig",
        "CompilationConfig",
        "KVTransferConfig",
        "LoRAConfig",
        "ModelConfig",
        "ParallelConfig",
    ),
    *("PoolerConfig", "ProfilerConfig", "SchedulerConfig", "SpeculativeConfig", "StructuredOutputsConfig"),
    *("VllmConfig", "WeightTransferConfig", "CacheConfig", "DeviceConfig", "EPLBConfig", "KernelConfig"),
    *(
        "KVEventsConfig",
        "LoadConfig",
        "MultiModalConfig",
        "ObservabilityConfig",
        "PassConfig",
        "ReasoningConfig",
    ),
)
"""Classes of vLLM's that hold arguments; ours are mappings, which an engine takes in their place."""

WORKINGS = "a module of vLLM's own workings, which has no counterpart here"

CHOICES = ("CompilationMode", "CUDAGraphMode")
"""Enumerations of vLLM's whose choices change nothing here."""

MODULES: dict[str, tuple[str, ...]] = {
    "beam_search": ("BeamSearchOutput", "BeamSearchSequence"),
    "config": (*CONFIGS, *CHOICES),
    "config.compilation": ("CompilationConfig", "PassConfig", *CHOICES),
    "config.kernel": ("KernelConfig",),
    "distributed": ("cleanup_dist_env_and_memory",),
    "engine.arg_utils": ("AsyncEngineArgs", "EngineArgs"),
    "engine.async_llm_engine": ("AsyncLLMEngine",),
    "engine.llm_engine": ("LLMEngine",),
    "entrypoints.llm": ("LLM",),
    "inputs": ("EmbedsPrompt", "PromptType", "TextPrompt", "TokensPrompt"),
    "logger": ("init_logger",),
    "logprobs": ("Logprob",),
    "lora.request": ("LoRARequest",),
    "outputs": (
        *("CompletionOutput", "RequestOutput"),
        *(name for name in EXPORTS if name.startswith(_POOLING) and name.endswith("Output")),
    ),
    "pooling_params": ("PoolingParams",),
    "sampling_params": (
        *("BeamSearchParams", "GuidedDecodingParams", "RequestOutputKind", "SamplingParams"),
        "StructuredOutputsParams",
    ),
    "usage.usage_lib": ("UsageContext",),
    "utils": ("FlexibleArgumentParser",),
    "utils.serial_utils": ("tensor2base64",),
    "utils.argparse_utils": ("FlexibleArgumentParser",),
    "v1.engine.async_llm": ("AsyncLLM",),
    "v1.engine.llm_engine": ("LLMEngine",),
    "v1.sample.logits_processor": _PROCESSING,
    "v1.sample.logits_processor.builtin": ("process_dict_updates",),
    "v1.sample.logits_processor.interface": ("BatchUpdate", "LogitsProcessor", "MoveDirectionality"),
    "v1.metrics.reader": ("Counter", "Gauge", "Histogram", "Metric", "Vector"),
    "version": ("__version__", "__version_tuple__"),
}
"""By module, below `pageant`, the names that it has."""

_PARENTS = {".".join(name.split(".")[:depth]) for name in MODULES for depth in range(1, name.count(".") + 1)}


_INTERNAL = frozenset(
    {
        *(
            "assets",
            "attention",
            "benchmarks",
            "compilation",
            "config",
            "distributed",
            "engine",
            "entrypoints",
        ),
        *(
            "envs",
            "executor",
            "forward_context",
            "inputs",
            "lora",
            "model_executor",
            "multimodal",
            "platforms",
        ),
        *("plugins", "reasoning", "renderers", "tokenizers", "tool_parsers", "transformers_utils", "usage"),
        *("utils", "v1", "worker"),
    }
)
"""Packages of vLLM's whose modules are its own workings, where `MODULES` does not name them."""


class _Refusing(type):
    """Metaclass of vLLM's classes that do not exist here: making or using one raises the reason."""

    _row: Row

    def __call__(cls, *arguments: Any, **named: Any) -> Any:
        raise Unsupported(cls._why())

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise Unsupported(cls._why())

    def _why(cls) -> str:
        row = cls._row
        return f"{row.name} is not there: {row.meaning}" + (f"; {row.nearest}" if row.nearest else "")


def find(name: str) -> Any:
    """Return what a public name stands for.

    Raises:
        KeyError: no such name, here or in vLLM.
    """
    name = ALIASES.get(name, name)
    if name in HOMES:
        return getattr(import_module(HOMES[name]), name)
    if name in CONFIGS:
        return import_module(f"{_NAMES}.helpers").config_class(name)
    if name in CHOICES:
        return import_module(f"{_NAMES}.helpers").names_class(name)
    if name in ("__version__", "__version_tuple__"):
        return _version()[name]
    row = EXPORTS[name]
    assert row.kind is Kind.NOT_YET, f"{name} has no home"
    return _Refusing(name, (), {"_row": row, "__doc__": row.meaning})


def _version() -> Mapping[str, Any]:
    from pageant.actors.runtime.version import VERSION

    numbers = tuple(int(one) if one.isdecimal() else one for one in VERSION.split("."))
    return {"__version__": VERSION, "__version_tuple__": numbers}


class _Module(ModuleType):
    """A module whose names are found when they are asked for."""

    def __getattr__(self, name: str) -> Any:
        path = self.__name__.removeprefix("pageant.")
        if name not in MODULES.get(path, ()):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}; see docs/from-vllm.md")
        value = find(name)
        setattr(self, name, value)
        return value

    def __dir__(self) -> list[str]:
        return list(MODULES.get(self.__name__.removeprefix("pageant."), ()))


class _Loader(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name, "Names of vLLM's, as Pageant has them.")

    def exec_module(self, module: ModuleType) -> None:
        module.__all__ = dir(module)  # type: ignore[attr-defined]


def spec_of(name: str) -> ModuleSpec | None:
    """Return how to import a module; None for one that is not vLLM's.

    Raises:
        ModuleNotFoundError: one of vLLM's own workings.
    """
    path = name.removeprefix("pageant.")
    if path not in MODULES and path not in _PARENTS:
        if path.partition(".")[0] in _INTERNAL:
            raise ModuleNotFoundError(f"{name}: {WORKINGS}; see docs/from-vllm.md", name=name)
        return None
    return ModuleSpec(name, _Loader(), is_package=path in _PARENTS)
