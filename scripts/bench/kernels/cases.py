"""Cases of the CPU kernels: shapes of a 0.6B Qwen3, and of two mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pageant import kernels
from pageant.kernels.base import HeadNorms, Kernels, SamplingTensors
from pageant.kernels.memory import Pages
from pageant.kernels.quantized import Bits, QuantizedWeight, empty_quantized
from pageant.scripts.bench.batches import scattered_batch

HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 1024, 3072, 16, 8, 128, 151936
BLOCK = 16
BF16, F32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Case:
    """Case that `run(kernels)` runs once. `num_bytes` is what it reads from memory, where caches hold less."""

    name: str
    run: Callable[[Kernels], Any]
    num_bytes: int | None = None
    flops: int | None = None


def cases() -> Iterator[Case]:
    """Yield every case."""
    yield from _linears()
    yield from _quantized_linears()
    yield from _attentions()
    yield from _experts()
    yield from _pointwise()
    yield from _samplers()


def _linears() -> Iterator[Case]:
    for dtype in (BF16, F32):
        # One after another, more than any cache holds: each product streams its weight from memory.
        count = 320_000_000 // (2 * INTERMEDIATE * HIDDEN * dtype.itemsize)
        weights = [torch.randn(2 * INTERMEDIATE, HIDDEN).to(dtype) for _ in range(count)]
        for rows in (1, 4, 16, 64, 512):
            x = torch.randn(rows, HIDDEN).to(dtype)
            used = weights if rows <= 16 else weights[:2]

            def run(backend: Kernels, x: torch.Tensor = x, used: list[torch.Tensor] = used) -> None:
                for weight in used:
                    backend.linear(x, weight)

            yield Case(
                f"linear {_name(dtype)} {rows} rows",
                run,
                sum(weight.nbytes for weight in used) if rows <= 16 else None,
                2 * rows * used[0].numel() * len(used),
            )


def _quantized_linears() -> Iterator[Case]:
    sizes: tuple[Bits, ...] = (8, 5, 4)
    for bits in sizes:
        count = 320_000_000 * 8 // (2 * INTERMEDIATE * HIDDEN * bits)
        ours = kernels.load("cpu")
        in_tiles = BF16 in ours.quantized_tiles
        weights = [empty_quantized((2 * INTERMEDIATE, HIDDEN), bits, "cpu", in_tiles) for _ in range(count)]
        for weight in weights:
            ours.quantize(torch.randn(2 * INTERMEDIATE, HIDDEN), weight)
        for rows in (1, 16, 512):
            x = torch.randn(rows, HIDDEN).to(BF16)
            used = weights if rows <= 16 else weights[:2]

            def run(backend: Kernels, x: torch.Tensor = x, used: list[QuantizedWeight] = used) -> None:
                for weight in used:
                    backend.linear(x, weight)

            yield Case(
                f"linear int{bits} {rows} rows",
                run,
                sum(weight.nbytes for weight in used) if rows <= 16 else None,
                4 * rows * INTERMEDIATE * HIDDEN * len(used),
            )


def _attentions() -> Iterator[Case]:
    lengths = {
        "decode, 1 sequence of 32000": [(1, 32000)],
        "decode, 64 sequences of 500": [(1, 500)] * 64,
        "decode, 1 sequence of 300": [(1, 300)],
        "prefill of 2048": [(2048, 2048)],
        "chunk of 512 after 3584": [(512, 4096)],
    }
    for dtype in (BF16, F32):
        for name, sequences in lengths.items():
            yield _attention(name, sequences, dtype)
    for heads in (32, 64):
        name = f"decode, 1 sequence of 32000, {heads // KV_HEADS} to 1"
        yield _attention(name, [(1, 32000)], BF16, heads)
    yield _attention("decode, 64 sequences of 2000", [(1, 2000)] * 64, BF16)
    yield _attention("chunk of 512 after 8000", [(512, 8512)], BF16)


def _attention(name: str, sequences: list[tuple[int, int]], dtype: torch.dtype, heads: int = HEADS) -> Case:
    batch = scattered_batch(sequences, BLOCK)
    num_blocks = int(batch.block_tables.max()) + 1
    pages = Pages("cpu")  # which the engine has them in
    keys, values = (pages.empty((num_blocks, KV_HEADS, BLOCK, HEAD_DIM), dtype).normal_() for _ in range(2))
    query = torch.randn(len(batch.positions), heads, HEAD_DIM).to(dtype)
    entries = sum(context for _, context in sequences)
    return Case(
        f"attention {_name(dtype)} {name}",
        lambda backend: backend.paged_attention(query, keys, values, batch, 0.1),
        2 * entries * KV_HEADS * HEAD_DIM * dtype.itemsize if entries > 20000 else None,
        sum(4 * new * (context - new // 2) * heads * HEAD_DIM for new, context in sequences),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _experts() -> Iterator[Case]:
    layers = {
        "128 experts of 768, top 8": (128, 8, 2048, 768),
        "8 experts of 3584, top 2": (8, 2, 1024, 3584),
    }
    for name, (num_experts, top_k, hidden, inner) in layers.items():
        gate_up = torch.randn(num_experts, 2 * inner, hidden, dtype=BF16)
        down = torch.randn(num_experts, hidden, inner, dtype=BF16)
        expert_bytes = (gate_up.nbytes + down.nbytes) // num_experts
        for tokens in (1, 16, 256):
            x = torch.randn(tokens, hidden, dtype=BF16)
            order = torch.stack([torch.randperm(num_experts) for _ in range(tokens)])
            # One token chooses all experts in turns, so that each is streamed from memory.
            turns = [
                part.contiguous() for part in torch.split(order, top_k, dim=1)[: 16 if tokens == 1 else 1]
            ]
            weights = torch.rand(tokens, top_k)

            def run(
                backend: Kernels,
                x: torch.Tensor = x,
                matrices: tuple[torch.Tensor, torch.Tensor] = (gate_up, down),
                weights: torch.Tensor = weights,
                turns: list[torch.Tensor] = turns,
            ) -> None:
                for experts in turns:
                    backend.moe(x, *matrices, weights, experts, "silu")

            yield Case(
                f"moe bfloat16 {name}, {tokens} tokens",
                run,
                sum(len(torch.unique(chosen)) for chosen in turns) * expert_bytes if tokens <= 16 else None,
                6 * tokens * top_k * hidden * inner * len(turns),
            )
        logits = torch.randn(256, num_experts, dtype=BF16)
        yield Case(f"route bfloat16 {name}, 256 tokens", _call("route", (logits, top_k, True)))


def _pointwise() -> Iterator[Case]:
    table = torch.randn(4096, HEAD_DIM)
    for rows in (1, 512):
        x, residual = (torch.randn(rows, HIDDEN).to(BF16) for _ in range(2))
        weight = torch.randn(HIDDEN).to(BF16)
        gate_up = torch.randn(rows, 2 * INTERMEDIATE).to(BF16)
        query, key, value = (torch.randn(rows, n, HEAD_DIM).to(BF16) for n in (HEADS, KV_HEADS, KV_HEADS))
        caches = [torch.zeros(64, KV_HEADS, BLOCK, HEAD_DIM, dtype=BF16) for _ in range(2)]
        places = torch.randperm(64 * BLOCK)[:rows]
        norms = HeadNorms(
            query=torch.ones(HEAD_DIM).to(BF16), key=torch.ones(HEAD_DIM).to(BF16), eps=1e-6, wide=False
        )
        runs: dict[str, tuple[Any, ...]] = {
            "add_rms_norm": (x, residual, weight, 1e-6),
            "rope_and_write_kv": (query, key, value, table, places, *caches, places, norms),
            "silu_and_mul": (gate_up,),
        }
        for name, arguments in runs.items():
            yield Case(f"{name} bfloat16 {rows} rows", _call(name, arguments))


def _call(name: str, arguments: tuple[Any, ...]) -> Callable[[Kernels], Any]:
    return lambda backend: getattr(backend, name)(*arguments)


def _samplers() -> Iterator[Case]:
    settings = {
        "greedy": (0.0, 0, 1.0),
        "plain": (1.0, 0, 1.0),
        "top_k 50": (1.0, 50, 1.0),
        "top_p 0.9": (1.0, 0, 0.9),
    }
    for rows in (1, 32):
        logits = torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(0)) * 3
        for name, (temperature, top_k, top_p) in settings.items():
            params = SamplingTensors(
                temperature=torch.full((rows,), temperature),
                top_k=torch.full((rows,), top_k, dtype=torch.int32),
                top_p=torch.full((rows,), top_p),
                min_p=torch.zeros(rows),
                seed=torch.arange(rows),
                sample=torch.zeros(rows, dtype=torch.int32),
                position=torch.arange(rows),
            )
            yield Case(f"sample {name} {rows} rows", _call("sample", (logits, params)))
        tokens = logits.argmax(dim=-1)
        yield Case(f"top_logprobs 5 {rows} rows", _call("top_logprobs", (logits, tokens, 5)))
