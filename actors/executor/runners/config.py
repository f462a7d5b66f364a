"""Configuration of a model runner: what it computes and in how much memory, decided once by an executor's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pageant.kernels.quantized_kv import KVFormat
from pageant.models.adapters.checkpoint import RANK_MAX
from pageant.models.quantization import Quantization
from pageant.models.sharding import Shard
from pageant.protocol.drafting import Speculation

__all__ = ["RunnerConfig"]


@dataclass(frozen=True, kw_only=True)
class RunnerConfig:
    """Configuration of a runner. `ExecutorOptions` has the same fields where their meaning is not given here."""

    # The model.

    model: Path
    """The checkpoint's folder."""
    dtype: str
    quantization: Quantization | None = None
    head_quantization: Quantization | None = None
    weight_version: str = ""
    adapters: Mapping[str, str] = field(default_factory=dict)
    """Folders of low-rank adapters, by name."""
    max_lora_rank: int = RANK_MAX
    speculation: Speculation | None = None

    # The device.

    device: str
    """The device as torch names it: a CPU without its cores."""
    backend: str
    """The kernels' backend, or `auto`."""
    deterministic: bool = False
    threads: int | None
    """Threads that compute on a CPU; None is a share of this process's cores."""
    shard: Shard | None = None
    """The share of the weights that is computed here; None is all of them, whose sums are taken at once."""

    # Steps, and the KV cache that they compute in.

    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int = 2048
    scratch_tokens: int = 0
    """Tokens of the steps under way. There are blocks for them where nothing is kept from one step to the next."""
    kv_cache_dtype: KVFormat = "auto"
    """The KV cache's, that of drafts included."""
    budget_bytes: int | None
    """Bytes for the KV cache; None leaves it to `choose_pool_size`."""
    store_bytes: int = 0
    """Memory of this host that a store takes by and by; 0 where there is none."""
    num_blocks: int | None
    """Exactly so many blocks, whatever the memory."""
    fit_max_model_len: bool = False
    group_layers: bool = True
    gpu_memory_utilization: float = 0.9

    @property
    def quantised_to(self) -> str:
        """Say what weights are quantised to while they are loaded; empty where none are."""
        parts = []
        if self.quantization is not None:
            parts.append(f"{self.quantization} weights")
        if self.head_quantization is not None:
            parts.append(f"an {self.head_quantization} head")
        return f" with {' and '.join(parts)}" if parts else ""
