"""Pageant: an LLM inference engine built as a microkernel of actors. The public API, loaded lazily."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pageant.actors.frontend.beams import BeamSearchOutput, BeamSearchParams, BeamSearchSequence
    from pageant.actors.frontend.engine import Engine
    from pageant.actors.frontend.llm import LLM
    from pageant.actors.frontend.llm_engine import LLMEngine
    from pageant.actors.frontend.outputs import (
        CompletionOutput,
        Logprob,
        RequestFailed,
        RequestMetrics,
        RequestOutput,
    )
    from pageant.actors.frontend.sampling_params import SamplingParams
    from pageant.models.errors import CheckpointError
    from pageant.protocol.errors import (
        BadRequest,
        DeadlineExceeded,
        EngineClosed,
        Overloaded,
        PageantError,
        PeerGone,
        StartupError,
        TopologyError,
        Unsupported,
    )
    from pageant.protocol.sampling import RequestOutputKind
    from pageant.protocol.structured_outputs import StructuredOutputsParams

_HOMES = {
    "BeamSearchOutput": "pageant.actors.frontend.beams",
    "BeamSearchParams": "pageant.actors.frontend.beams",
    "BeamSearchSequence": "pageant.actors.frontend.beams",
    "Engine": "pageant.actors.frontend.engine",
    "LLM": "pageant.actors.frontend.llm",
    "LLMEngine": "pageant.actors.frontend.llm_engine",
    "CompletionOutput": "pageant.actors.frontend.outputs",
    "Logprob": "pageant.actors.frontend.outputs",
    "RequestMetrics": "pageant.actors.frontend.outputs",
    "RequestOutputKind": "pageant.protocol.sampling",
    "RequestFailed": "pageant.actors.frontend.outputs",
    "RequestOutput": "pageant.actors.frontend.outputs",
    "SamplingParams": "pageant.actors.frontend.sampling_params",
    "StructuredOutputsParams": "pageant.protocol.structured_outputs",
    "BadRequest": "pageant.protocol.errors",
    "CheckpointError": "pageant.models.errors",
    "DeadlineExceeded": "pageant.protocol.errors",
    "EngineClosed": "pageant.protocol.errors",
    "Overloaded": "pageant.protocol.errors",
    "PageantError": "pageant.protocol.errors",
    "PeerGone": "pageant.protocol.errors",
    "StartupError": "pageant.protocol.errors",
    "TopologyError": "pageant.protocol.errors",
    "Unsupported": "pageant.protocol.errors",
}

__all__ = [
    "LLM",
    "BadRequest",
    "BeamSearchOutput",
    "BeamSearchParams",
    "BeamSearchSequence",
    "CheckpointError",
    "CompletionOutput",
    "DeadlineExceeded",
    "Engine",
    "EngineClosed",
    "LLMEngine",
    "Logprob",
    "Overloaded",
    "PageantError",
    "PeerGone",
    "RequestFailed",
    "RequestMetrics",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StartupError",
    "StructuredOutputsParams",
    "TopologyError",
    "Unsupported",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Imports a public name when it is first asked for (PEP 562)."""
    if name == "__version__":
        from pageant.actors.runtime.version import VERSION

        return VERSION
    if name not in _HOMES:
        raise AttributeError(f"module 'pageant' has no attribute {name!r}")
    import importlib

    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
