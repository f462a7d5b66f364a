"""Keyword arguments of `Engine` and `LLM`, under the names that they have everywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypedDict

from pageant.actors.client.session import Session
from pageant.actors.client.vllm_names.translating import as_written, translated
from pageant.actors.runtime.classes import look_in
from pageant.actors.runtime.topology import Topology, parse
from pageant.actors.runtime.yaml import load_yaml, merge
from pageant.protocol.errors import ArgumentError, TopologyError

TopologyLike = Topology | str | Path | Mapping[str, Any]


class EngineSettings(TypedDict, total=False):
    """Settings and keys of a topology.

    Options of actors of your own are taken too, and checked the same way, and so are vLLM's names of settings: see
    docs/from-vllm.md.
    """

    placement: Literal["one", "each", "auto"] | None
    wire: Literal["auto", "always"] | None
    transport: Literal["ipc", "tcp"] | None
    nodes: Mapping[str, Any] | None
    actors: Mapping[str, Any] | None
    replicas: int | None
    seed: int | None
    heartbeat_seconds: float | None
    suspicion_seconds: float | None
    served_model_name: str | Sequence[str] | None
    max_logprobs: int | None
    revision: str | None
    tokenizer: str | Path | None
    tokenizer_revision: str | None
    skip_tokenizer_init: bool | None
    enable_prompt_embeds: bool | None
    allowed_media_domains: Sequence[str] | None
    limit_mm_per_prompt: Mapping[str, Any] | None
    image_cache_memory: str | int | None
    encoder_threads: int | None
    chat_template: str | Path | None
    generation_config: Literal["auto", "none"] | None
    override_generation_config: Mapping[str, Any] | None
    hf_overrides: Mapping[str, Any] | None
    runner: Literal["auto", "generate", "pooling"] | None
    convert: Literal["auto", "none", "embed", "classify"] | None
    pooler_config: Mapping[str, Any] | None
    hf_config_path: str | Path | None
    max_model_len: int | str | None
    max_num_seqs: int | str | None
    max_num_batched_tokens: int | str | None
    async_scheduling: bool | None
    enable_prefix_caching: bool | None
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float", "half"] | None
    quantization: str | None
    head_quantization: Literal["int8", "int4"] | None
    adapters: Mapping[str, str | Path] | None
    max_lora_rank: int | None
    device: str | None
    kernels: str | None
    deterministic: bool | None
    block_size: int | None
    kv_cache_dtype: Literal["auto", "int8", "fp8"] | None
    kv_cache_memory: str | int | None
    host_memory: str | int | None
    disk_space: str | int | None
    store_memory: str | int | None
    disk_path: str | None
    gpu_memory_utilization: float | None
    num_blocks: int | None
    threads: int | None
    tensor_parallel: int | None
    pipeline_parallel: int | None
    pipeline_layers: Sequence[int] | None
    expert_parallel: bool | None
    expert_sums: Literal["parts", "exact"] | None
    tensor_segments: int | None
    collectives: Literal["auto", "shm", "gloo"] | None
    policy: str | None
    start_asleep: bool | None
    while_asleep: Literal["wait", "refuse"] | None
    max_loaded_models: int | None
    min_loaded_seconds: float | None
    unload_level: Literal[1, 2] | None
    speculation: Mapping[str, Any] | None
    otlp_traces_endpoint: str | None
    traces_sampled: float | None
    detailed_traces: bool | None
    vllm_metrics: bool | None


@contextmanager
def speaking_of(settings: Mapping[str, Any]) -> Iterator[None]:
    """Turn errors about these arguments into ArgumentErrors, under the names that were given."""
    try:
        yield
    except TopologyError as error:
        names = as_written(settings)
        option = re.fullmatch(r"actors\.[^.]+\.options\.(\w+)(.*)", error.place)
        place = option[1] + option[2] if option is not None and option[1] in names else error.place
        key, dot, rest = place.partition(".")
        if key not in names and key not in settings:
            raise
        message = error.message.replace("no such key", "no such argument", 1)
        raise ArgumentError(f"{names.get(key, key)}{dot}{rest}", message) from None


def session_of(
    model: str | Path | None, topology: TopologyLike | None, settings: Mapping[str, Any]
) -> Session:
    """The session that a user's arguments describe, not started yet.

    Raises:
        ArgumentError, TopologyError, CheckpointError: what is wrong, and where.
    """
    with speaking_of(settings):
        return Session(*model_of(model, topology, settings))


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
        raise ArgumentError("model", f"none is named; expected one of the topology's, {names}")
    return written, None if model is None else str(model)


def topology_of(
    model: str | Path | None, topology: TopologyLike | None, settings: Mapping[str, Any]
) -> Topology:
    """The topology that a user's arguments describe: a file or mapping, and settings laid over it.

    Raises:
        ArgumentError: a setting that cannot be taken.
        TopologyError: not the form of a topology; see `topology.parse`.
    """
    with speaking_of(settings):
        given = {key: value for key, value in translated(settings).items() if value is not None}
    if model is not None:
        given["model"] = str(model)
    given |= {name: str(value) for name, value in given.items() if isinstance(value, Path)}
    if isinstance(adapters := given.get("adapters"), Mapping):
        given["adapters"] = {name: str(folder) for name, folder in adapters.items()}
    if isinstance(topology, Topology):
        if given:
            raise ValueError(f"a Topology is complete; it cannot be given {', '.join(given)} besides")
        return topology
    if isinstance(topology, str | Path):
        written: Mapping[str, Any] = load_yaml(Path(topology))
        look_in(Path(topology).parent)  # a class that it names may stand beside it
    else:
        written = topology or {}
    merged = merge(_under_our_names(written), given)
    with speaking_of(settings):
        return parse(merged)


def _under_our_names(written: Mapping[str, Any]) -> dict[str, Any]:
    """A topology's keys, and those of each of its models, under our names."""
    found = translated(written) if isinstance(written, Mapping) else written
    models = found.get("models")
    if not isinstance(models, Mapping):
        return found
    found["models"] = {
        name: _model_keys(f"models.{name}", keys) if isinstance(keys, Mapping) else keys
        for name, keys in models.items()
    }
    return found


def _model_keys(place: str, keys: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return translated(keys)
    except TopologyError as error:
        raise error.within(place) from None
