"""The size of the KV cache: how many blocks, and how long a request they hold."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pageant.protocol.block_counts import blocks_needed, tokens_held
from pageant.protocol.errors import ConfigurationError

CPU_SHARE = 0.25
"""Share of a host's free memory for the KV cache, when nobody said how much."""
MARGIN_SHARE = 0.125
MARGIN_BYTES_MIN = 1 << 30
"""Free memory that a KV cache leaves when it takes more than `CPU_SHARE`: for activations and other processes."""

log = logging.getLogger("pageant.executor")


class TooLittleMemory(ConfigurationError):
    """Error where there is no room for the KV of a single request of the longest length."""


def available_bytes() -> int:
    """Return the memory that can be had without swapping."""
    found = _kernel_bytes("MemAvailable")
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if found is None else found


def total_bytes() -> int:
    """Return this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def shared_bytes() -> int:
    """Return the memory that processes of this host share by now, a store's included; 0 if it is not known."""
    return _kernel_bytes("Shmem") or 0


def _kernel_bytes(name: str) -> int | None:
    """Return a figure of the kernel about this host's memory; None if it has no such figure."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def host_budget(longest_bytes: int, store_bytes: int = 0) -> int:
    """Return the bytes for the KV cache of a CPU, the weights being there.

    Args:
        store_bytes: memory that a store takes by and by; what it has taken is not free any more.
        longest_bytes: bytes of one request of the longest length. For its sake the cache may take more than
            `CPU_SHARE` of what is free, up to a margin.
    """
    free = max(0, available_bytes() - max(0, store_bytes - shared_bytes()))
    most = free - max(int(free * MARGIN_SHARE), MARGIN_BYTES_MIN)
    return max(int(free * CPU_SHARE), min(longest_bytes, most))


def device_budget(*, free: int, total: int, share: float, step: int) -> int:
    """Bytes for the KV cache of a GPU.

    Args:
        free, total: of its memory, the weights being there.
        share: of the whole that may be used, by others too.
        step: what the largest step takes besides.
    """
    return max(0, int(free - (1 - share) * total) - step)


@dataclass(frozen=True)
class PoolSize:
    """Size of the KV cache: its blocks, and the tokens of the longest request that it holds."""

    num_blocks: int
    max_model_len: int


def choose_pool_size(
    wanted: int | None = None,
    *,
    block_bytes: int,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    budget_bytes: int | None,
    windows: Sequence[int | None] = (None,),
    num_states: int = 0,
    chunk: int = 0,
    may_shorten: bool = False,
    num_near: int = 1,
    store_bytes: int = 0,
) -> PoolSize:
    """Return as many blocks as the budget holds, and no more than `max_num_seqs` longest requests can use.

    Args:
        wanted: exactly so many blocks, whatever the budget.
        block_bytes: bytes of one block, over all layers of its group.
        block_size: tokens of a block.
        max_model_len: tokens of the longest request.
        budget_bytes: bytes that the user or the device allows; None is what `host_budget` says.
        windows: of the groups of layers, each of which has a block of its own for every `block_size` tokens.
        num_states: how many of these groups, the last ones, hold states.
        chunk: the most tokens that a step computes.
        num_near: executors that share this host's memory and have as many blocks each.
        store_bytes: see `host_budget`.
        may_shorten: nobody asked for `max_model_len`: where it does not fit, the result has what fits.

    Raises:
        TooLittleMemory: not enough for one request of `max_model_len` tokens, or, where that may be shortened, for
            one block of each group. The message says what would help.
    """
    num_groups = len(windows)
    per_request = blocks_needed(max_model_len, block_size, windows, num_states, chunk)
    if wanted is not None:
        blocks, there = wanted, f"num_blocks is {wanted}, of {block_size} tokens each"
        there += f", in one of {num_groups} groups of layers" if num_groups > 1 else ""
    else:
        budget = budget_bytes
        if budget is None:
            budget = host_budget(num_near * per_request * block_bytes, store_bytes) // num_near
        blocks = min(budget // block_bytes, per_request * max_num_seqs)
        there = f"{budget / 2**20:,.0f} MiB are there for the KV cache"
    if blocks >= per_request:
        return PoolSize(blocks, max_model_len)
    fitting = tokens_held(blocks, block_size, windows, num_states, chunk)
    hint = "; with group_layers: false it needs less" if num_groups - num_states > 1 else ""
    if may_shorten and fitting:
        log.warning(
            "max_model_len %s of %s: %s; raise kv_cache_memory (on a GPU, gpu_memory_utilization) or quantize%s",
            *(f"{fitting:,}", f"{max_model_len:,}", there, hint),
        )
        return PoolSize(blocks, fitting)
    raise TooLittleMemory(
        f"{there}, and one request of max_model_len {max_model_len} needs {per_request} blocks, "
        f"{per_request * block_bytes / 2**20:,.0f} MiB; lower max_model_len to {fitting} or less, or raise "
        f"kv_cache_memory (on a GPU, gpu_memory_utilization){hint}"
    )
