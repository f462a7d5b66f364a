"""What `Engine` and `LLM` take as keyword arguments, under the names that it has everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict

from pageant.actors.runtime.topology import Topology, parse
from pageant.actors.runtime.yaml import load_yaml, merge
from pageant.protocol.errors import TopologyError

TopologyLike = Topology | str | Path | Mapping[str, Any]


class EngineSettings(TypedDict, total=False):
    """Settings and keys of a topology. Options of actors of your own are taken too, and checked the same way."""

    placement: Literal["one", "each", "auto"] | None
    wire: Literal["auto", "always"] | None
    transport: Literal["ipc", "tcp"] | None
    nodes: Mapping[str, Any] | None
    actors: Mapping[str, Any] | None
    seed: int | None
    heartbeat_seconds: float | None
    suspicion_seconds: float | None
    served_model_name: str | None
    max_logprobs: int | None
    revision: str | None
    tokenizer: str | Path | None
    tokenizer_revision: str | None
    skip_tokenizer_init: bool | None
    chat_template: str | Path | None
    generation_config: Literal["auto", "none"] | None
    max_model_len: int | None
    max_num_seqs: int | None
    max_num_batched_tokens: int | None
    async_scheduling: bool | None
    enable_prefix_caching: bool | None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] | None
    quantization: Literal["int8", "int4"] | None
    adapters: Mapping[str, str | Path] | None
    max_lora_rank: int | None
    device: str | None
    kernels: str | None
    deterministic: bool | None
    block_size: int | None
    kv_cache_memory: str | int | None
    host_memory: str | int | None
    disk_space: str | int | None
    disk_path: str | None
    gpu_memory_utilization: float | None
    num_blocks: int | None
    threads: int | None
    policy: str | None
    speculation: Mapping[str, Any] | None
    otlp_traces_endpoint: str | None
    traces_sampled: float | None
    detailed_traces: bool | None


def model_of(
    model: str | Path | None, topology: TopologyLike | None, settings: Mapping[str, Any]
) -> tuple[Topology, str | None]:
    """The topology that a user's arguments describe, and which of its models they mean. Where it has several, `model`
    is the name of one.

    Raises:
        TopologyError: see `topology_of`; or there are several models, and none is named.
    """
    written = topology_of(None, topology, settings)
    if not written.models:
        return topology_of(model, topology, settings), None
    if model is None and len(written.models) > 1:
        names = ", ".join(map(repr, written.models))
        raise TopologyError("model", f"none is named; expected one of the topology's, {names}")
    return written, None if model is None else str(model)


def topology_of(
    model: str | Path | None, topology: TopologyLike | None, settings: Mapping[str, Any]
) -> Topology:
    """The topology that a user's arguments describe: a file or mapping, and settings laid over it.

    Raises:
        TopologyError: not the form of a topology; see `topology.parse`.
    """
    given = {key: value for key, value in settings.items() if value is not None}
    if model is not None:
        given["model"] = str(model)
    given |= {name: str(value) for name, value in given.items() if isinstance(value, Path)}
    if isinstance(adapters := given.get("adapters"), Mapping):
        given["adapters"] = {name: str(folder) for name, folder in adapters.items()}
    if isinstance(topology, Topology):
        if given:
            raise ValueError(f"a Topology is complete; it cannot be given {', '.join(given)} besides")
        return topology
    written = load_yaml(Path(topology)) if isinstance(topology, str | Path) else topology or {}
    return parse(merge(written, given))
