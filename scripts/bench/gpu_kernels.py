"""The GPU benchmark's cases of single kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from pageant.kernels.base import HeadNorms, Kernels, SamplingTensors
from pageant.scripts.bench.batches import scattered_batch
from pageant.scripts.bench.gpu_measuring import BLOCK, Bench, Case


def attention_case(
    bench: Bench, ours: Kernels, name: str, sequences: list[tuple[int, int]], heads: tuple[int, int, int]
) -> Case:
    """Heads are (query heads, key heads, head size)."""
    num_heads, kv_heads, head_dim = heads
    batch = scattered_batch(sequences, BLOCK, bench.device)
    query = bench.numbers(len(batch.positions), num_heads, head_dim)
    num_blocks = sum(-(-context // BLOCK) for _, context in sequences)
    keys, values = (bench.numbers(num_blocks, kv_heads, BLOCK, head_dim) for _ in range(2))
    entries = sum(context for _, context in sequences)
    pairs = sum(new * context - new * (new - 1) // 2 for new, context in sequences)
    new, context = sequences[0]
    rivals: tuple[tuple[str, Callable[[], Any]], ...] = ()
    if new == context and all(pair == (new, context) for pair in sequences):
        q, k, v = (
            bench.numbers(len(sequences), count, new, head_dim) for count in (num_heads, kv_heads, kv_heads)
        )

        def torchs(backend: SDPBackend) -> Callable[[], Any]:
            def run() -> None:
                with sdpa_kernel(backend):
                    F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=num_heads != kv_heads)

            return run

        rivals = (
            ("flash", torchs(SDPBackend.FLASH_ATTENTION)),
            ("cudnn", torchs(SDPBackend.CUDNN_ATTENTION)),
        )
    itemsize = bench.dtype.itemsize
    return Case(
        name,
        lambda: ours.paged_attention(query, keys, values, batch, head_dim**-0.5),
        (2 * entries * kv_heads * head_dim + 2 * query.numel()) * itemsize if new == 1 else None,
        4 * pairs * num_heads * head_dim if new > 1 else None,
        rivals,
    )


def attention_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Llama 3's heads."""
    of, heads = bench.sizes.of, (32, 8, 128) if bench.on_gpu else (4, 2, 32)
    for count, context in ((64, 8000), (256, 1000), (1, 8000), (1, 100_000)):
        name = f"decode attention, {count} x {context}"
        yield attention_case(bench, ours, name, [(1, of(context, 20))] * of(count), heads)
    for count, length in ((1, 8192), (8, 1024)):
        sequences = [(of(length, 24), of(length, 24))] * count
        yield attention_case(bench, ours, f"prefill attention, {count} x {length}", sequences, heads)
    mixed = [(of(2048, 20), of(8192, 40)), *[(1, of(4000, 30))] * of(32, 2)]
    yield attention_case(bench, ours, "a chunk of 2048 after 6144, and 32 decodes", mixed, heads)


def row_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """What is a matter of bandwidth alone, over the rows of a prefill."""
    rows, hidden, inner = (bench.sizes.of(size, 32) for size in (8192, 4096, 14336))
    x, residual, weight = bench.numbers(rows, hidden), bench.numbers(rows, hidden), bench.numbers(hidden)
    yield Case("add_rms_norm", lambda: ours.add_rms_norm(x, residual, weight, 1e-6), 4 * x.nbytes)
    gate_up = bench.numbers(rows, 2 * inner)
    yield Case("silu_and_mul", lambda: ours.silu_and_mul(gate_up), 1.5 * gate_up.nbytes)
    query, key, value = (bench.numbers(rows, heads, 128) for heads in (32, 8, 8))
    norms = HeadNorms(query=bench.numbers(128), key=bench.numbers(128), eps=1e-6, wide=False)
    table = torch.randn(rows, 128, device=bench.device)
    places = torch.randperm(rows, device=bench.device)
    keys, values = (bench.numbers(rows // BLOCK, 8, BLOCK, 128) for _ in range(2))
    yield Case(
        "rope_and_write_kv, with norms",
        lambda: ours.rope_and_write_kv(query, key, value, table, places, keys, values, places, norms),
        2 * (query.nbytes + key.nbytes + value.nbytes) + table.nbytes,
    )


def product_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Products with whole weights, and Qwen3-30B-A3B's experts."""
    of = bench.sizes.of
    weight = bench.numbers(of(28672, 32), of(4096, 32))
    for rows in (1, 64, 4096):
        x = bench.numbers(of(rows), weight.shape[1])
        few = rows <= 64
        yield Case(
            f"linear, {rows} rows",
            lambda x=x: ours.linear(x, weight),  # type: ignore[misc]
            weight.nbytes if few else None,
            None if few else 2 * weight.numel() * len(x),
        )
    num_experts, top_k, hidden, inner = of(128, 4), of(8, 2), of(2048, 32), of(768, 32)
    gate_up, down = bench.numbers(num_experts, 2 * inner, hidden), bench.numbers(num_experts, hidden, inner)
    for tokens in (1, 32, 8192):
        x = bench.numbers(of(tokens), hidden)
        weights, experts = ours.route(bench.numbers(len(x), num_experts), top_k, True)
        used = len(set(experts.flatten().tolist())) / num_experts * (gate_up.nbytes + down.nbytes)
        few = tokens <= 32
        yield Case(
            f"moe, {tokens} tokens",
            lambda x=x, weights=weights, experts=experts: ours.moe(  # type: ignore[misc]
                x, gate_up, down, weights, experts, "silu"
            ),
            used if few else None,
            None if few else 2 * 3 * experts.numel() * hidden * inner,
        )


def sampling_cases(bench: Bench, ours: Kernels) -> Iterator[Case]:
    """Over Qwen's vocabulary."""
    for rows in (1, 64):
        logits = 3 * torch.randn(rows, bench.sizes.of(151936, 300), device=bench.device)
        for name, temperature, top_k, top_p in (
            ("greedy", 0.0, 0, 1.0),
            ("plain", 1.0, 0, 1.0),
            ("top_k 50, top_p 0.9", 1.0, 50, 0.9),
        ):
            params = sampling(bench, rows, temperature, top_k, top_p)
            yield Case(
                f"sample {name}, {rows} rows",
                lambda logits=logits, params=params: ours.sample(logits, params),  # type: ignore[misc]
                logits.nbytes,
            )


def sampling(bench: Bench, rows: int, temperature: float, top_k: int, top_p: float) -> SamplingTensors:
    """The same for all rows, but for the seed."""
    device = bench.device
    return SamplingTensors(
        temperature=torch.full((rows,), temperature, device=device),
        top_k=torch.full((rows,), top_k, dtype=torch.int32, device=device),
        top_p=torch.full((rows,), top_p, device=device),
        min_p=torch.zeros(rows, device=device),
        seed=torch.arange(rows, device=device),
        sample=torch.zeros(rows, dtype=torch.int32, device=device),
        position=torch.arange(rows, device=device),
    )
