"""Attention over pages, beside torch's own where a prefill has no context before it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.scripts.bench.batches import scattered_batch
from pageant.scripts.bench.gpu_check.cases import Recorder
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench, Case, Run, Work, bench_here, measure_cases

__all__ = ["LLAMA", "Heads", "attention_cases", "attention_work", "run"]


class Heads(NamedTuple):
    """Query heads, key heads, and the size of each."""

    query: int
    key: int
    size: int

    def __str__(self) -> str:
        return f"{self.query}/{self.key} heads of {self.size}"


LLAMA = Heads(32, 8, 128)
Lengths = list[tuple[int, int]]
"""(new tokens, context) of each sequence."""


def run(recorder: Recorder, tiny: bool) -> None:
    """Measure decodes, prefills and mixed steps."""
    bench = bench_here(tiny=tiny)
    measure_cases(recorder, bench, attention_cases(bench, kernels.load("triton", bench.device.type)))


def attention_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Yield the cases, those with a bar first."""
    of = bench.of

    def decode(
        count: int, context: int, heads: Heads = LLAMA, new: int = 1, window: int | None = None
    ) -> Case:
        described = "" if heads == LLAMA else f", {heads}"
        described += f", {new} new tokens" if new > 1 else ""
        described += f", window {window}" if window else ""
        lengths = [(new, of(context, 20))] * of(count)
        name = f"decode {count} x {context}{described}"
        return Case(name, lambda: attention_work(bench, ours, lengths, heads, window))

    def prefill(count: int, length: int, heads: Heads = LLAMA) -> Case:
        described = "" if heads == LLAMA else f", {heads}"
        lengths = [(of(length, 24), of(length, 24))] * count
        return Case(
            f"prefill {count} x {length}{described}",
            lambda: attention_work(bench, ours, lengths, heads, rivals=True),
        )

    yield decode(64, 8000)
    yield prefill(1, 8192)
    mixed = [(of(2048, 20), of(8192, 40)), *[(1, of(4000, 30))] * of(32, 2)]
    yield Case("chunk of 2048 after 6144, 32 decodes", lambda: attention_work(bench, ours, mixed, LLAMA))
    yield decode(256, 1000)
    yield decode(1, 100_000)
    yield decode(16, 1000, new=5)
    yield prefill(8, 1024)
    for heads in (Heads(32, 8, 64), Heads(16, 8, 256), Heads(32, 4, 128)):
        yield decode(64, 4000, heads)
        yield prefill(1, 4096, heads)
    yield decode(64, 8000, window=1024)
    yield decode(64, 4000, new=4)
    for count in (1, 8, 32, 128, 256):
        for context in (1000, 4000, 8000):
            if (count, context) != (256, 1000):
                yield decode(count, context)


def attention_work(
    bench: Bench,
    ours: Kernels,
    lengths: Lengths,
    heads: Heads,
    window: int | None = None,
    rivals: bool = False,
) -> Work:
    """Return attention of a step, over caches that hold it as often as there are copies."""
    heads = Heads(4, 2, 32) if bench.tiny else heads
    window = bench.of(window, 8) if window else None
    batch = scattered_batch(lengths, BLOCK, bench.device)
    seen = [min(context, window + new - 1) if window else context for new, context in lengths]
    decodes = max(new for new, _ in lengths) <= 8
    query = bench.numbers(len(batch.positions), heads.query, heads.size)
    kv_bytes = 2 * sum(seen) * heads.key * heads.size * bench.dtype.itemsize
    copies = bench.copies(kv_bytes) if decodes else 1
    num_blocks = sum(-(-context // BLOCK) for _, context in lengths)
    keys, values = (bench.numbers(copies * num_blocks, heads.key, BLOCK, heads.size) for _ in range(2))
    batches = [
        replace(batch, block_tables=batch.block_tables + copy * num_blocks, derived={})
        for copy in range(copies)
    ]
    pairs = sum(new * context - new * (new - 1) // 2 for new, context in lengths)

    def runs_on(index: int) -> Run:
        return lambda: ours.paged_attention(query, keys, values, batches[index], heads.size**-0.5, window)

    return Work(
        [runs_on(copy) for copy in range(copies)],
        num_bytes=kv_bytes + 2 * query.nbytes if decodes else None,
        flops=None if decodes else 4 * pairs * heads.query * heads.size,
        rivals=_rivals(bench, lengths, heads) if rivals and bench.device.type != "meta" else {},
    )


def _rivals(bench: Bench, lengths: Lengths, heads: Heads) -> dict[str, Run]:
    """Return torch's attention of sequences that are all new, on contiguous keys and values of their own."""
    count, length = len(lengths), lengths[0][0]
    q, k, v = (
        bench.numbers(count, number, length, heads.size) for number in (heads.query, heads.key, heads.key)
    )

    def dense(backend: SDPBackend) -> Run:
        def run() -> None:
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

        return run

    # Its heads are as many for keys as for queries: torch has no other.
    query, key, value = (bench.numbers(count * length, heads.query, heads.size) for _ in range(3))
    starts = torch.arange(0, (count + 1) * length, length, dtype=torch.int32, device=bench.device)

    def varlen() -> None:
        from torch.nn.attention.varlen import varlen_attn

        varlen_attn(query, key, value, starts, starts, length, length, window_size=(-1, 0))

    return {
        "flash": dense(SDPBackend.FLASH_ATTENTION),
        "cudnn": dense(SDPBackend.CUDNN_ATTENTION),
        "varlen": varlen,
    }
