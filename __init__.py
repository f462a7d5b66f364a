"""Pageant: an LLM inference engine built as a microkernel of actors. The public API, loaded lazily."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pageant.actors.client.async_llm import AsyncLLM
    from pageant.actors.client.async_llm import AsyncLLM as AsyncLLMEngine
    from pageant.actors.client.beams import BeamSearchParams
    from pageant.actors.client.engine import Engine
    from pageant.actors.client.llm import LLM
    from pageant.actors.client.llm_engine import LLMEngine
    from pageant.actors.client.lora import LoRARequest
    from pageant.actors.client.outputs import CompletionOutput, RequestOutput
    from pageant.actors.client.pooling_outputs import (
        ClassificationOutput,
        ClassificationRequestOutput,
        EmbeddingOutput,
        EmbeddingRequestOutput,
        PoolingOutput,
        PoolingRequestOutput,
        ScoringOutput,
        ScoringRequestOutput,
    )
    from pageant.actors.client.prompt_types import PromptType, TextPrompt, TokensPrompt
    from pageant.actors.client.sampling_params import SamplingParams
    from pageant.actors.client.vllm_names.engine_args import AsyncEngineArgs, EngineArgs
    from pageant.actors.frontend.beam_search import BeamSearchOutput, BeamSearchSequence
    from pageant.actors.frontend.outputs import Logprob, RequestFailed, RequestMetrics
    from pageant.models.errors import CheckpointError
    from pageant.models.quantizing.quantizer import quantize
    from pageant.protocol.errors import (
        ArgumentError,
        BadRequest,
        DeadlineExceeded,
        EngineClosed,
        NotLoaded,
        Overloaded,
        PageantError,
        PeerGone,
        StartupError,
        TopologyError,
        Unsupported,
    )
    from pageant.protocol.pooling import PoolingParams
    from pageant.protocol.sampling import RequestOutputKind
    from pageant.protocol.structured_outputs import StructuredOutputsParams
    from pageant.protocol.structured_outputs import StructuredOutputsParams as GuidedDecodingParams

_HOMES = {
    "BeamSearchOutput": "pageant.actors.frontend.beam_search",
    "BeamSearchParams": "pageant.actors.client.beams",
    "BeamSearchSequence": "pageant.actors.frontend.beam_search",
    "Engine": "pageant.actors.client.engine",
    "LLM": "pageant.actors.client.llm",
    "LLMEngine": "pageant.actors.client.llm_engine",
    "AsyncLLM": "pageant.actors.client.async_llm",
    "AsyncLLMEngine": "pageant.actors.client.async_llm:AsyncLLM",
    "AsyncEngineArgs": "pageant.actors.client.vllm_names.engine_args",
    "EngineArgs": "pageant.actors.client.vllm_names.engine_args",
    "LoRARequest": "pageant.actors.client.lora",
    "PromptType": "pageant.actors.client.prompt_types",
    "TextPrompt": "pageant.actors.client.prompt_types",
    "TokensPrompt": "pageant.actors.client.prompt_types",
    "GuidedDecodingParams": "pageant.protocol.structured_outputs:StructuredOutputsParams",
    "ArgumentError": "pageant.protocol.errors",
    "ClassificationOutput": "pageant.actors.client.pooling_outputs",
    "ClassificationRequestOutput": "pageant.actors.client.pooling_outputs",
    "CompletionOutput": "pageant.actors.client.outputs",
    "EmbeddingOutput": "pageant.actors.client.pooling_outputs",
    "EmbeddingRequestOutput": "pageant.actors.client.pooling_outputs",
    "PoolingOutput": "pageant.actors.client.pooling_outputs",
    "PoolingParams": "pageant.protocol.pooling",
    "PoolingRequestOutput": "pageant.actors.client.pooling_outputs",
    "ScoringOutput": "pageant.actors.client.pooling_outputs",
    "ScoringRequestOutput": "pageant.actors.client.pooling_outputs",
    "Logprob": "pageant.actors.frontend.outputs",
    "RequestMetrics": "pageant.actors.frontend.outputs",
    "RequestOutputKind": "pageant.protocol.sampling",
    "RequestFailed": "pageant.actors.frontend.outputs",
    "RequestOutput": "pageant.actors.client.outputs",
    "SamplingParams": "pageant.actors.client.sampling_params",
    "StructuredOutputsParams": "pageant.protocol.structured_outputs",
    "BadRequest": "pageant.protocol.errors",
    "CheckpointError": "pageant.models.errors",
    "quantize": "pageant.models.quantizing.quantizer",
    "DeadlineExceeded": "pageant.protocol.errors",
    "EngineClosed": "pageant.protocol.errors",
    "NotLoaded": "pageant.protocol.errors",
    "Overloaded": "pageant.protocol.errors",
    "PageantError": "pageant.protocol.errors",
    "PeerGone": "pageant.protocol.errors",
    "StartupError": "pageant.protocol.errors",
    "TopologyError": "pageant.protocol.errors",
    "Unsupported": "pageant.protocol.errors",
}

__all__ = [
    "LLM",
    "ArgumentError",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BadRequest",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CheckpointError",
    "ClassificationOutput",
    "ClassificationRequestOutput",
    "CompletionOutput",
    "DeadlineExceeded",
    "EmbeddingOutput",
    "EmbeddingRequestOutput",
    "Engine",
    "EngineArgs",
    "EngineClosed",
    "GuidedDecodingParams",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "NotLoaded",
    "Overloaded",
    "PageantError",
    "PeerGone",
    "PoolingOutput",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestFailed",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "ScoringOutput",
    "ScoringRequestOutput",
    "StartupError",
    "StructuredOutputsParams",
    "TextPrompt",
    "TokensPrompt",
    "TopologyError",
    "Unsupported",
    "__version__",
    "quantize",
]


class _OtherPaths:
    """Finds modules under vLLM's paths, such as `pageant.sampling_params`, and under paths that they had before."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Return how to import a module; the import system asks after all other finders."""
        if not name.startswith("pageant."):
            return None
        if name.startswith("pageant.actors."):
            from pageant.actors.runtime import moved

            return moved.spec_of(name)
        from pageant.actors.client.vllm_names.modules import spec_of

        return spec_of(name)


sys.meta_path.append(_OtherPaths)


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for (PEP 562)."""
    if name == "__version__":
        from pageant.actors.runtime.version import VERSION

        return VERSION
    import importlib

    if name in _HOMES:
        module, _, attribute = _HOMES[name].partition(":")
        value = getattr(importlib.import_module(module), attribute or name)
    else:
        value = _of_vllm(name)
    globals()[name] = value
    return value


def _of_vllm(name: str) -> Any:
    """A public name of vLLM's that is not there: a class that says why when it is used."""
    from pageant.actors.client.vllm_names.methods import EXPORTS
    from pageant.actors.client.vllm_names.modules import find

    if name not in EXPORTS:
        raise AttributeError(f"module 'pageant' has no attribute {name!r}")
    return find(name)


def __dir__() -> list[str]:
    return __all__
