"""Small things that scripts for vLLM import beside its classes."""

from __future__ import annotations

import gc
import logging
from enum import StrEnum
from typing import Any


class UsageContext(StrEnum):
    """The caller of an engine, as vLLM has it; nothing is reported."""

    UNKNOWN_CONTEXT = "UNKNOWN_CONTEXT"
    LLM_CLASS = "LLM_CLASS"
    API_SERVER = "API_SERVER"
    OPENAI_API_SERVER = "OPENAI_API_SERVER"
    OPENAI_BATCH_RUNNER = "OPENAI_BATCH_RUNNER"
    ENGINE_CONTEXT = "ENGINE_CONTEXT"


def init_logger(name: str) -> logging.Logger:
    """Return the logger of this name."""
    return logging.getLogger(name)


def cleanup_dist_env_and_memory(shutdown_ray: bool = False) -> None:
    """Collect garbage, and with it engines that nobody has any more; each gives back what it held."""
    gc.collect()


class Config(dict[str, Any]):
    """Arguments in a mapping, with keys as attributes."""

    def __init__(self, **given: Any) -> None:
        super().__init__(given)

    def __getattr__(self, name: str) -> Any:
        if name not in self:
            raise AttributeError(f"{type(self).__name__} was given no {name}")
        return self[name]


def config_class(name: str) -> type[Config]:
    """Return a class of this name that holds arguments; an engine says what it takes of them."""
    return type(name, (Config,), {"__doc__": f"Arguments of vLLM's {name}."})


class _Names(type):
    """Classes whose attributes are their own names, whichever is asked for."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name


def names_class(name: str) -> type:
    """Return a class of this name that stands for an enumeration of choices which change nothing here."""
    return _Names(name, (), {"__doc__": f"Values of vLLM's {name}: texts of the same name."})


def tensor2base64(tensor: Any) -> str:
    """Return a tensor of torch as `prompt_embeds` takes it over HTTP: a safetensors file in base64, no pickle."""
    import base64

    from safetensors.torch import save

    return base64.b64encode(save({"tensor": tensor.detach().cpu().contiguous()})).decode()
