"""Compiles every kernel in the variants that models use, for GPUs that are not here; prints a line of JSON for each:

    python -m pageant.scripts.cubins.variants --arch sm_80,sm_90,sm_100 --dtype bfloat16

A line has the registers and the stack of a thread, shared memory, and the instructions of the longest loop. Where a
loop multiplies with a quantised weight, `per_weight` are the instructions of all threads over its weights.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from pageant.kernels.base import AttentionBatch, HeadNorms, SamplingTensors, TokenMasks
from pageant.kernels.quantized import Bits, empty_quantized
from pageant.kernels.quantized_kv import row_size
from pageant.kernels.states import Page, StateBatch, StateMemory
from pageant.kernels.strands import StateArrays
from pageant.kernels.triton import TritonKernels
from pageant.scripts.cubins.compiling import DEVICES, SHARED_MAX, compile_launches, inspect_cubin

__all__ = ["compile_variants"]

_SPILLED_MAX = 16  # bytes of stack: a word or two may be put aside, not a tile
_ATTENTION, _PRODUCTS, _CORE, _ALL = "attention", "products", "core", "all"
_ROWS = {_PRODUCTS: (1, 64), _CORE: (1, 64, 512), _ALL: (1, 16, 64, 256, 512)}
"""Rows of x that quantised weights are compiled for: of each tile, or of each kernel."""

Labels = dict[str, Any]


class Reporter:
    """Prints a line for each kernel that is compiled, and counts those that do not fit or that spill."""

    def __init__(self, arch: str) -> None:
        self.arch, self.labels = arch, dict[str, Any]()
        self.kernels, self.unfit = set[str](), 0

    def heard(self, function: Any, kernel: Any, seconds: float) -> None:
        """Print what a kernel was compiled to."""
        name = function.fn.__name__
        found = inspect_cubin(kernel.asm["cubin"])
        line = {
            "kernel": name,
            "arch": self.arch,
            **self.labels,
            "shared": kernel.metadata.shared,
            "shared_max": SHARED_MAX[self.arch],
            "seconds": round(seconds, 1),
            **found,
        }
        if name in ("multiply_quantized", "multiply_sliced"):
            constants = _constants(function, kernel)
            weights = constants["COLUMNS"] * constants["DEPTH"] * constants.get("SLICES", 1)
            line["rows"] = constants["ROWS"]
            line["per_weight"] = round(found["loop"] * kernel.metadata.num_warps * 32 / weights, 2)
        self.kernels.add(name)
        self.unfit += line["shared"] > line["shared_max"] or found["stack"] > _SPILLED_MAX
        print(json.dumps(line), flush=True)


def _constants(function: Any, kernel: Any) -> dict[str, Any]:
    """Return the constants that a kernel was compiled for, by their names."""
    names = function.arg_names
    return {names[place[0]]: value for place, value in kernel.src.constants.items() if len(place) == 1}


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Return a tensor without memory, [*shape] of `dtype`."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _batch(sequences: int, tokens: int, context: int, trees: bool) -> AttentionBatch:
    return AttentionBatch(
        query_starts=empty(sequences + 1, dtype=torch.int32),
        context_lengths=empty(sequences, dtype=torch.int32),
        block_tables=empty(sequences, context // 16, dtype=torch.int32),
        slots=empty(sequences * tokens),
        positions=empty(sequences * tokens),
        max_query_length=tokens,
        max_context_length=context,
        ancestors=empty(sequences * tokens) if trees else None,
    )


def _attention(
    dtype: torch.dtype,
    head_dim: int,
    window: int | None = None,
    softcap: float | None = None,
    trees: bool = False,
    kv: torch.dtype | None = None,
) -> None:
    caches = [empty(4096, 8, 16, row_size(head_dim, kv or dtype), dtype=kv or dtype) for _ in range(2)]
    for sequences, tokens in ((4, 1), (2, 2048)):
        query = empty(sequences * tokens, 32, head_dim, dtype=dtype)
        batch = _batch(sequences, tokens, 8192, trees)
        TritonKernels().paged_attention(query, caches[0], caches[1], batch, 0.1, window, softcap)


def _rows(dtype: torch.dtype) -> None:
    kernels = TritonKernels()
    x, weight = empty(16, 4096, dtype=dtype), empty(4096, dtype=dtype)
    kernels.add_rms_norm(x, x, weight, 1e-6)
    kernels.add_wide_rms_norm(x, x, weight.float(), 1e-6)
    kernels.layer_norm(x, weight, weight, 1e-6)
    kernels.rms_norm(empty(16, 32, 128, dtype=dtype), weight[:128], 1e-6)
    kernels.silu_and_mul(empty(16, 28672, dtype=dtype))
    kernels.gelu(x, tanh=True)
    kernels.gelu_and_mul(x, tanh=False)
    query, key = empty(16, 32, 128, dtype=dtype), empty(16, 8, 128, dtype=dtype)
    keys, values = (empty(64, 8, 16, 128, dtype=dtype) for _ in range(2))
    norms = HeadNorms(query=weight[:128], key=weight[:128], eps=1e-6, wide=False)
    table = empty(4096, 128, dtype=torch.float32)
    kernels.rope_and_write_kv(query, key, key, table, empty(16), keys, values, empty(16), norms)
    coded = empty(64, 8, 16, row_size(128, torch.float8_e4m3fn), dtype=torch.float8_e4m3fn)
    kernels.rope_and_write_kv(query, key, key, table, empty(16), coded, coded, empty(16), norms)
    kernels.write_kv(key, key, keys, values, empty(16))
    kernels.move_kv([(keys, values)], empty(3), empty(3))


def _experts(dtype: torch.dtype) -> None:
    kernels = TritonKernels()
    gate_up, down = empty(64, 2 * 768, 2048, dtype=dtype), empty(64, 2048, 768, dtype=dtype)
    for tokens in (4, 256, 4096):
        weights, experts = kernels.route(empty(tokens, 64, dtype=dtype), 8, True)
        kernels.moe(empty(tokens, 2048, dtype=dtype), gate_up, down, weights, experts, "silu")


def _recurrent(dtype: torch.dtype) -> None:
    """Launch the layers of Qwen3-Next, Nemotron-H and LFM2, with drafts and without."""
    starts, ints, blocks = (empty(size, dtype=torch.int32) for size in (5, 4, 56))
    plain = StateArrays(starts, ints, blocks.view(2, 4, 7), 256)
    for arrays in (plain, plain._replace(replay_starts=starts, unsure=ints)):
        batch = StateBatch(arrays)
        delta, mamba, conv = (
            _states(dtype, *sizes) for sizes in ((16, 32, 128, 128), (8, 112, 128, 64), (1, 0, 0, 0))
        )
        heads = empty(16, 32, dtype=torch.float32)
        channels, taps = empty(16, delta.num_channels, dtype=dtype), empty(delta.num_channels, 4, dtype=dtype)
        TritonKernels().gated_delta_net(channels, taps, heads, heads, delta, batch)
        heads = empty(16, 112, dtype=torch.float32)
        mixed = empty(16, mamba.num_channels, dtype=dtype)
        TritonKernels().state_space(mixed, heads, heads, heads[0], mamba, batch)
        mixed, taps = mixed[:, : conv.num_channels], empty(conv.num_channels, 4, dtype=dtype)
        TritonKernels().causal_conv(mixed, taps, taps[:, 0], conv, batch, activated=False)


def _states(dtype: torch.dtype, key_heads: int, heads: int, key_dim: int, value_dim: int) -> StateMemory:
    """Return a layer's states in two groups' pages."""
    pages = tuple(Page(group, empty(64, 1 << 21, dtype=torch.uint8)) for group in range(2))
    return StateMemory(
        num_heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        num_channels=2 * key_heads * key_dim + heads * value_dim or 2048,
        kernel=4,
        dtype=dtype,
        pages=pages,
    )


def _quantized(dtype: torch.dtype, width: Bits, what: str) -> None:
    weight = empty_quantized((4096, 4096), width, "meta")
    for rows in _ROWS[what]:
        TritonKernels().linear(empty(rows, 4096, dtype=dtype), weight)
    gate_up, down = (empty_quantized(shape, width, "meta") for shape in ((8, 1536, 2048), (8, 2048, 768)))
    x, weights, experts = empty(4, 2048, dtype=dtype), empty(4, 2, dtype=torch.float32), empty(4, 2)
    TritonKernels().moe(x, gate_up, down, weights, experts, "silu")


def _sampling() -> None:
    floats, ints = empty(8, dtype=torch.float32), empty(8, dtype=torch.int32)
    params = SamplingTensors(
        temperature=floats,
        top_k=ints,
        top_p=floats,
        min_p=floats,
        seed=empty(8),
        sample=ints,
        position=empty(8),
    )
    logits = empty(8, 151936, dtype=torch.float32)
    masks = TokenMasks(empty(8), empty(8, 151936 // 32, dtype=torch.int32))
    TritonKernels().sample(logits, params, masks)
    TritonKernels().sample(logits, replace(params, filters=False))
    TritonKernels().top_logprobs(logits, empty(8), 20)


def _launches(dtype: torch.dtype, what: str) -> Iterator[tuple[Labels, Any]]:
    """Yield labels, and what launches the variants that they are for."""
    widths: tuple[Bits, ...] = (8, 5, 4)
    if what == _PRODUCTS:
        for width in widths:
            yield {"bits": width}, lambda width=width: _quantized(dtype, width, what)
        return
    for head_dim in (128,) if what == _ATTENTION else (64, 128, 256):
        yield {"head_dim": head_dim}, lambda size=head_dim: _attention(dtype, size)
    if what == _ATTENTION:
        return
    yield {"head_dim": 128, "windowed": True}, lambda: _attention(dtype, 128, 4096, 30.0)
    trees: Labels = {"head_dim": 128, "windowed": True, "trees": True}
    yield trees, lambda: _attention(dtype, 128, 4096, trees=True)
    for name, kv in {"int8": torch.int8, "fp8": torch.float8_e4m3fn}.items():
        yield {"head_dim": 128, "kv": name}, lambda kv=kv: _attention(dtype, 128, kv=kv)
    yield {}, lambda: _rows(dtype)
    yield {}, lambda: _experts(dtype)
    yield {}, lambda: _recurrent(dtype)
    for width in widths:
        yield {"bits": width}, lambda width=width: _quantized(dtype, width, what)
    yield {}, _sampling


def compile_variants(arch: str, dtype: str, what: str) -> Reporter:
    """Compile the variants in this process, which can launch nothing afterwards; returns what was found."""
    reporter = Reporter(arch)
    compile_launches(arch, reporter.heard)
    for labels, launch in _launches(getattr(torch, dtype), what):
        reporter.labels = {"dtype": dtype, **labels}
        launch()
    return reporter


def main() -> int:
    """Compile for one architecture in this process, or for several in processes of their own, one after another."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", default="sm_80,sm_90,sm_100", help=f"some of {', '.join(DEVICES)}")
    parser.add_argument("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    parser.add_argument(
        "--what",
        choices=(_ALL, _CORE, _ATTENTION, _PRODUCTS),
        default=_ALL,
        help="every kernel; with fewer tiles for quantised weights; attention over heads of 128; quantised products",
    )
    options = parser.parse_args()
    architectures = options.arch.split(",")
    if unknown := set(architectures) - set(DEVICES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; expected some of {', '.join(DEVICES)}")
    if len(architectures) > 1:
        command = [sys.executable, "-m", "pageant.scripts.cubins.variants"]
        command += ["--dtype", options.dtype, "--what", options.what, "--arch"]
        return max(subprocess.run([*command, arch], check=False).returncode for arch in architectures)
    found = compile_variants(options.arch, options.dtype, options.what)
    if found.unfit:
        print(f"{found.unfit} variants do not fit {options.arch} or spill", file=sys.stderr)
    return 1 if found.unfit else 0


if __name__ == "__main__":
    os.environ.pop("TRITON_INTERPRET", None)
    sys.exit(main())
