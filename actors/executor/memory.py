"""How many KV blocks there is room for."""

from __future__ import annotations

import os
from pathlib import Path

CPU_SHARE = 0.25  # of the memory that is free, when nobody said how much


class TooLittleMemory(ValueError):
    """There is no room for the KV of a single request of the longest length."""


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def total_bytes() -> int:
    """Of this host's memory."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def device_budget(*, free: int, total: int, share: float, step: int) -> int:
    """Bytes for the KV cache of a GPU.

    Args:
        free, total: of its memory, the weights being there.
        share: of the whole that may be used, by others too.
        step: what the largest step takes besides.
    """
    return max(0, int(free - (1 - share) * total) - step)


def choose_num_blocks(
    wanted: int | None = None,
    *,
    block_bytes: int,
    block_size: int,
    max_model_len: int,
    max_num_seqs: int,
    budget_bytes: int | None,
    num_groups: int = 1,
) -> int:
    """As many blocks as the budget holds, and no more than `max_num_seqs` longest requests can use.

    Args:
        wanted: so many exactly, whatever the budget.
        num_groups: of layers, each of which has a block of its own for every `block_size` tokens.
        budget_bytes: what the user said; None is `CPU_SHARE` of what is free.

    Raises:
        TooLittleMemory: not enough for one request of `max_model_len` tokens; says what would help.
    """
    per_request = -(-max_model_len // block_size) * num_groups
    hint = "; with group_layers: false it needs less" if num_groups > 1 else ""
    if wanted is not None:
        if wanted < per_request:
            raise TooLittleMemory(
                f"num_blocks is {wanted}, of {block_size} tokens each, in one of {num_groups} groups of layers; "
                f"a request of max_model_len {max_model_len} needs {per_request}{hint}"
            )
        return wanted
    budget = int(available_bytes() * CPU_SHARE) if budget_bytes is None else budget_bytes
    blocks = min(budget // block_bytes, per_request * max_num_seqs)
    if blocks < per_request:
        needed = per_request * block_bytes
        raise TooLittleMemory(
            f"{budget / 2**20:.0f} MiB are there for the KV cache, and one request of max_model_len "
            f"{max_model_len} needs {needed / 2**20:.0f} MiB; lower max_model_len to "
            f"{blocks // num_groups * block_size} or less, or raise kv_cache_memory (on a GPU, gpu_memory_utilization)"
            f"{hint}"
        )
    return blocks
