"""Options of an executor, and the runner that follows from them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from pageant import kernels
from pageant.actors.executor.group_shape import GroupShape
from pageant.actors.runtime import ActorOptions, devices
from pageant.actors.runtime.sizes import parse_bytes
from pageant.protocol.adapters import AddedAdapter
from pageant.protocol.checks import expected
from pageant.protocol.drafting import Speculation

if TYPE_CHECKING:
    from pageant.actors.executor.runners.config import RunnerConfig
    from pageant.actors.executor.runners.loaded_model import LoadedModel
    from pageant.actors.executor.runners.model_runner import ModelRunner
    from pageant.kernels.collectives.group_operations import GroupOperations
    from pageant.models.sharding import ExpertSharing, Shard

__all__ = ["ExecutorOptions", "load_weights", "make_runner", "runner_config"]

THREADS_MAX = 1024
RANKS_MAX = 64
"""Members of a group: more than the key heads of any model that is known here."""
SCRATCH_STEPS = 3
"""Steps whose blocks are held at once, where nothing is kept from one to the next: one is computed, two planned."""


class ExecutorOptions(ActorOptions, frozen=True, kw_only=True):
    """Options of the executor.

    Attributes:
        model: the checkpoint's folder.
        dtype: of weights and activations; `auto` is the checkpoint's own.
        adapters: the folders of the model's low-rank adapters, by name.
        added_adapters: those that were loaded while the model was served, by their keys (`protocol.adapters`). One
            that cannot be loaded any more is left out.
        weight_version: the name of the weights in the model's folder; other weights need another name.
        adapter_serial: how many there ever were, which the lifecycle actor counts.
        max_lora_rank: refuses larger ones.
        quantization: `int8` or `int4` weights, made while they are loaded; None leaves them in `dtype`.
        head_quantization: the same of embedding and head alone; None is what `quantization` says.
        device: `cpu`, cores of it such as `cpu:0-3,8`, `cuda` or `cuda:N`.
        kernels: the backend, or `auto`.
        deterministic: a row's results are the same bits whatever else is in its step, and however its prompt is cut
            into chunks, where that costs speed too; a CPU's backend alone knows how.
        block_size: tokens per KV block.
        max_num_seqs, max_model_len: the size of the batch.
        fit_max_model_len: lower `max_model_len` to what the KV cache holds, where nobody asked for it.
        kv_cache_dtype: `int8` or `fp8` keys and values, scaled by token and head; `auto` is the model's own dtype.
        kv_cache_memory: for KV blocks, such as `4GiB`; None is a share of what is free.
        gpu_memory_utilization: of a GPU's memory, the share for weights, steps and KV blocks together.
        max_num_batched_tokens: of the largest step, for which a GPU's memory must do.
        num_blocks: exactly so many KV blocks instead.
        group_layers: give layers with another window than the rest blocks of their own, so that they need keep only
            what it reaches.
        threads: that compute on a CPU; None is all of the device's cores.
        disk_path: a folder for KV blocks that there is no more room for in the host's memory, where the block
            manager's `disk_space` allows for any.
        eos_token_ids: the model's end tokens, held back by `min_tokens`.
        logits_processors: `module:Class` of your own; see `pageant.actors.executor.batch.processors`.
        speculation: whose drafts are made here, if its method is one of the device's.
        mask_patience: seconds; a request fails whose grammar does not say for so long what may follow. (A grammar that
            is down is waited for.)
        step_patience: seconds; a step that takes longer, and 20 times as long as expected, is a death.
        tensor_parallel: executors that compute each layer together, with a share of its weights each.
        pipeline_parallel: stages that compute some of the layers each, one after another. Each is of as many executors
            as `tensor_parallel` says.
        pipeline_layers: layers of each stage; None is as many on each as can be.
        expert_parallel: whole experts on each executor of a stage, instead of a part of each expert.
        expert_sums: with whole experts, what executors exchange: sums over the experts that each has (`parts`), or what
            each expert made, whose sum has the bits of one executor (`exact`) and more bytes to move.
        tensor_segments: parts that sums over the executors are taken in; None is one for each.
        replicas_near: replicas of the model on this host, which share its cores and memory. Filled in.
        store_bytes: memory of this host that a store takes. Filled in.
        collectives: how executors of a group exchange tensors: by memory that they share (`shm`), by torch.distributed
            (`gloo`), or `auto`: the first of these that can be.
    """

    model: str
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    adapters: dict[str, str] = msgspec.field(default_factory=dict)
    added_adapters: dict[str, AddedAdapter] = msgspec.field(default_factory=dict)
    adapter_serial: int = 0
    weight_version: str = "default"
    max_lora_rank: int = 256
    quantization: Literal["int8", "int4"] | None = None
    head_quantization: Literal["int8", "int4"] | None = None
    device: str = "cpu"
    kernels: str = "auto"
    deterministic: bool = False
    block_size: int = 16
    max_num_seqs: int = 256
    max_model_len: int = 4096
    fit_max_model_len: bool = False
    kv_cache_dtype: Literal["auto", "int8", "fp8"] = "auto"
    kv_cache_memory: str | int | None = None
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int = 2048
    num_blocks: int | None = None
    group_layers: bool = True
    threads: int | None = None
    disk_path: str | None = None
    eos_token_ids: tuple[int, ...] = ()
    logits_processors: tuple[str, ...] = ()
    speculation: Speculation | None = None
    mask_patience: float = 60.0
    step_patience: float = 10.0
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    pipeline_layers: tuple[int, ...] | None = None
    expert_parallel: bool = False
    expert_sums: Literal["parts", "exact"] = "parts"
    tensor_segments: int | None = None
    collectives: Literal["auto", "shm", "gloo"] = "auto"
    replicas_near: int = 1
    store_bytes: int = 0

    def __post_init__(self) -> None:
        for name in ("mask_patience", "step_patience"):
            if not 0 < getattr(self, name) < 1e6:
                raise ValueError(f"{name} is {getattr(self, name)}; expected a number above 0")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ValueError(
                f"gpu_memory_utilization is {self.gpu_memory_utilization}; expected more than 0, at most 1"
            )
        for name in (
            *("block_size", "max_num_seqs", "max_model_len", "max_num_batched_tokens"),
            *("num_blocks", "threads", "max_lora_rank", "replicas_near"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; expected at least 1")
        if self.threads is not None and self.threads > THREADS_MAX:
            raise ValueError(f"threads is {self.threads}; expected at most {THREADS_MAX}")
        if self.kernels != "auto" and self.kernels not in kernels.BACKENDS:
            raise ValueError(
                f"kernels is {self.kernels!r}; {expected(self.kernels, ('auto', *kernels.BACKENDS))}"
            )
        if self.device == devices.FREE or not devices.FORM.fullmatch(self.device):
            raise ValueError(f"device is {self.device!r}; expected cpu, cpu:0-3, cuda or cuda:N")
        self._check_cores()
        memory = self.kv_cache_memory
        try:
            too_small = memory is not None and parse_bytes(memory) < 1
        except ValueError as error:
            raise ValueError(f"kv_cache_memory: {error}") from None
        if too_small:
            raise ValueError(f"kv_cache_memory is {memory!r}; expected at least a byte, such as 4GiB")
        fits = self.num_blocks is None or self.num_blocks * self.block_size >= self.max_model_len
        if not fits and not self.fit_max_model_len:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, of {self.block_size} tokens each; a request of max_model_len "
                f"{self.max_model_len} needs {-(-self.max_model_len // self.block_size)}"
            )
        check_group(self)

    @property
    def num_members(self) -> int:
        """See `ActorOptions`."""
        return self.shape.size

    @property
    def members_because(self) -> str:
        """See `ActorOptions`."""
        names = ("tensor_parallel", "pipeline_parallel")
        return " x ".join(f"{name}: {getattr(self, name)}" for name in names if getattr(self, name) > 1)

    @property
    def shape(self) -> GroupShape:
        """The executors that compute the model together."""
        return GroupShape(self.tensor_parallel, self.pipeline_parallel)

    @property
    def expert_sharing(self) -> ExpertSharing:
        """Return how the executors of a stage share experts out."""
        if not self.expert_parallel:
            return "cut"
        return "exact" if self.expert_sums == "exact" else "whole"

    def shard(self, rank: int) -> Shard | None:
        """Return the share of the weights that a member has; None is all of them, whose sums are taken at once."""
        from pageant.models.sharding import Shard
        from pageant.models.stages import Stage

        stage = Stage(self.shape.stage_of(rank), self.pipeline_parallel, self.pipeline_layers)
        place, ranks = rank % self.tensor_parallel, self.tensor_parallel
        shard = Shard(place, ranks, self.tensor_segments, self.expert_sharing, stage)
        return shard if shard.is_joint or stage.count > 1 else None

    def _check_cores(self) -> None:
        try:
            cores = self.cores
        except ValueError as error:
            raise ValueError(f"device is {error}") from None
        if cores is not None and self.threads is not None and self.threads > len(cores):
            raise ValueError(
                f"threads is {self.threads}, with device {self.device!r}; expected at most {len(cores)}, "
                "one for each core"
            )

    @property
    def cores(self) -> tuple[int, ...] | None:
        """The cores that the device names; None is all of the process's, or none of a CPU's."""
        return devices.cores_of(self.device)

    @property
    def torch_device(self) -> str:
        """The device as torch names it: a CPU without its cores."""
        return devices.CPU if devices.is_cpu(self.device) else self.device

    @property
    def num_threads(self) -> int | None:
        """Threads that compute on a CPU: one for each core of the device, unless `threads` says otherwise."""
        return self.threads or (None if self.cores is None else len(self.cores))


def check_group(options: ExecutorOptions) -> None:
    """Check the options that make a group of executors, and what cannot be had with one yet.

    Raises:
        ValueError: names the option, what was found and what was expected.
    """
    size, stages = options.tensor_parallel, options.pipeline_parallel
    for name, count in (("tensor_parallel", size), ("pipeline_parallel", stages)):
        if not 1 <= count <= RANKS_MAX:
            raise ValueError(f"{name} is {count}; expected 1 to {RANKS_MAX}")
    if size * stages > RANKS_MAX:
        raise ValueError(
            f"pipeline_parallel is {stages}, of {size} executors each; expected at most {RANKS_MAX} executors together"
        )
    _check_layers_of_stages(options)
    segments = options.tensor_segments or size
    if segments != size and (segments < 1 or segments % size or segments & (segments - 1)):
        raise ValueError(
            f"tensor_segments is {options.tensor_segments}; expected {size}, one for each of tensor_parallel, "
            f"or a power of two that divides by {size}"
        )
    if segments > RANKS_MAX:
        raise ValueError(f"tensor_segments is {segments}; expected at most {RANKS_MAX}")
    if size > 1:
        _check_with_group(options, f"with tensor_parallel {size}")
    elif stages > 1:
        _check_with_group(options, f"with pipeline_parallel {stages}")
    elif segments > 1:
        _check_with_group(options, f"with tensor_segments {segments}")


def _check_layers_of_stages(options: ExecutorOptions) -> None:
    layers, stages = options.pipeline_layers, options.pipeline_parallel
    if layers is not None and (len(layers) != stages or min(layers) < 1):
        raise ValueError(
            f"pipeline_layers is {list(layers)}; expected {stages} numbers of at least 1, one for each of "
            "pipeline_parallel"
        )


def _check_with_group(options: ExecutorOptions, group: str) -> None:
    if not devices.is_cpu(options.device):
        raise ValueError(
            f"device is {options.device!r}; expected cpu {group}: groups of GPUs are not in this version"
        )


def _use_cores(options: ExecutorOptions) -> None:
    """Let this thread, and those that it starts from now on, compute on the cores of its device alone.

    Raises:
        ValueError: this process may not use one of them.
    """
    if missing := devices.missing_cores(options.device):
        raise ValueError(f"device is {missing}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, options.cores or ())


def _prepare_thread(options: ExecutorOptions) -> None:
    """Settle where this thread and those that it starts compute, and how they wait, before torch is loaded.

    Raises:
        ValueError: this process may not use one of the cores.
    """
    if options.cores is not None:
        _use_cores(options)
    # torch's OpenMP threads spin at its barriers, for seconds of CPU time where cores are shared with
    # anyone else; about 50 microseconds are enough. It is read when torch is loaded.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def make_runner(options: ExecutorOptions, **others: Any) -> ModelRunner:
    """The runner for the device, with its model loaded: seconds of work.

    Args:
        others: the runner's arguments that are no options: clock, progress, disk, loaded; of a group's member,
            operations and num_near.
    """
    _prepare_thread(options)
    from pageant.actors.executor.runners.cuda import CudaRunner
    from pageant.actors.executor.runners.runner import TorchRunner

    if options.replicas_near > 1 and options.torch_device == devices.CPU:
        others["num_near"] = others.get("num_near", 1) * options.replicas_near
    runner: Callable[..., ModelRunner] = TorchRunner if options.num_members == 1 else _member_runner(**others)
    if options.torch_device != "cpu":
        runner = CudaRunner
    operations: GroupOperations | None = others.get("operations")
    made = runner(runner_config(options, 0 if operations is None else operations.rank), **others)
    if isinstance(made, CudaRunner):
        made.prepare()
    return made


def runner_config(options: ExecutorOptions, rank: int = 0) -> RunnerConfig:
    """Return the configuration of a runner that follows from an executor's options.

    Args:
        rank: among the members of a group.
    """
    from pageant.actors.executor.runners.config import RunnerConfig

    memory = options.kv_cache_memory
    return RunnerConfig(
        model=Path(options.model),
        dtype=options.dtype,
        quantization=options.quantization,
        head_quantization=options.head_quantization,
        weight_version=options.weight_version,
        adapters=options.adapters,
        max_lora_rank=options.max_lora_rank,
        speculation=options.speculation,
        device=options.torch_device,
        backend=options.kernels,
        deterministic=options.deterministic,
        threads=options.num_threads,
        shard=options.shard(rank),
        block_size=options.block_size,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        scratch_tokens=SCRATCH_STEPS * options.max_num_batched_tokens,
        kv_cache_dtype=options.kv_cache_dtype,
        budget_bytes=None if memory is None else parse_bytes(memory),
        store_bytes=options.store_bytes,
        num_blocks=options.num_blocks,
        fit_max_model_len=options.fit_max_model_len,
        group_layers=options.group_layers,
        gpu_memory_utilization=options.gpu_memory_utilization,
    )


def _member_runner(*, operations: GroupOperations, **others: Any) -> Callable[..., ModelRunner]:
    """Return the runner's class for this rank of a group."""
    from pageant.actors.executor.groups.following_runner import FollowingRunner
    from pageant.actors.executor.groups.leading_runner import LeadingRunner
    from pageant.actors.executor.groups.staged_runners import StagedFollower, StagedLeader

    if operations.links is None:
        return FollowingRunner if operations.rank else LeadingRunner
    return StagedFollower if operations.rank else StagedLeader


def load_weights(
    options: ExecutorOptions, rank: int = 0, progress: Callable[[int, int], None] | None = None
) -> LoadedModel:
    """The weights that `make_runner` would load, for it to take over later.

    Args:
        rank: among the members of a group, for its share of them.
        progress: see `load_decoder`.

    Raises:
        CheckpointError: the checkpoint cannot be computed, or cannot be shared out so.
    """
    _prepare_thread(options)
    from pageant.actors.executor.runners.loaded_model import LoadedModel, ModelKey

    key = ModelKey.of(runner_config(options, rank))
    return LoadedModel(key, options.adapters, progress)
