"""Compiles what the wrappers would launch on a device that is not here: a program that prints JSON lines.

The wrappers run on tensors without memory; a driver that only names a target stands in for CUDA's, and each
launch becomes the compilation of the very variant that would run, down to machine code.

    python tests/kernels/triton/compiling.py sm_90 bfloat16 64,128,256 all
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pageant.kernels.base import AttentionBatch, HeadNorms, SamplingTensors

DEVICES = {
    "sm_80": SimpleNamespace(major=8, minor=0, multi_processor_count=108),
    "sm_89": SimpleNamespace(major=8, minor=9, multi_processor_count=128),
    "sm_90": SimpleNamespace(major=9, minor=0, multi_processor_count=132),
    "sm_100": SimpleNamespace(major=10, minor=0, multi_processor_count=148),
    "sm_120": SimpleNamespace(major=12, minor=0, multi_processor_count=170),
}
SHARED_MAX = {"sm_80": 166912, "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}
CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Driver:
    """As much of a driver as a compilation asks for."""

    def __init__(self, arch: str) -> None:
        self.target = GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)

    def get_current_target(self) -> GPUTarget:
        return self.target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


def record(arch: str, line: dict[str, Any]) -> None:
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        began = time.perf_counter()
        kernel = run(self, *args, grid=grid, warmup=True, **options)
        seconds = round(time.perf_counter() - began, 1)
        usage = resources(kernel.asm["cubin"])
        facts = {"kernel": self.fn.__name__, "shared": kernel.metadata.shared, "seconds": seconds, **usage}
        print(json.dumps({"arch": arch, **line, **facts, "shared_max": SHARED_MAX[arch]}), flush=True)

    JITFunction.run = compile_only  # type: ignore[method-assign]


def resources(cubin: bytes) -> dict[str, int]:
    """Registers of a thread, and bytes of stack, which is where registers are spilled to."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [CUOBJDUMP, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found is not None, said
    return {"registers": int(found[1]), "stack": int(found[2])}


def empty(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def batch(sequences: int, tokens: int, context: int, trees: bool = False) -> AttentionBatch:
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


def attention(
    dtype: torch.dtype,
    head_dim: int,
    window: int | None = None,
    softcap: float | None = None,
    trees: bool = False,
) -> None:
    from pageant.kernels.triton import TritonKernels

    caches = [empty(4096, 8, 16, head_dim, dtype=dtype) for _ in range(2)]
    for sequences, tokens in ((4, 1), (2, 2048)):
        query = empty(sequences * tokens, 32, head_dim, dtype=dtype)
        step = batch(sequences, tokens, 8192, trees)
        TritonKernels().paged_attention(query, *caches, step, 0.1, window, softcap)


def others(dtype: torch.dtype) -> None:
    from pageant.kernels.triton import TritonKernels

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
    caches = [empty(64, 8, 16, 128, dtype=dtype) for _ in range(2)]
    norms = HeadNorms(query=weight[:128], key=weight[:128], eps=1e-6, wide=False)
    table = empty(4096, 128, dtype=torch.float32)
    kernels.rope_and_write_kv(query, key, key, table, empty(16), *caches, empty(16), norms)
    kernels.write_kv(key, key, *caches, empty(16))
    kernels.move_kv([(caches[0], caches[1])], empty(3), empty(3))
    gate_up, down = empty(64, 2 * 768, 2048, dtype=dtype), empty(64, 2048, 768, dtype=dtype)
    for tokens in (4, 256, 4096):
        weights, experts = kernels.route(empty(tokens, 64, dtype=dtype), 8, True)
        kernels.moe(empty(tokens, 2048, dtype=dtype), gate_up, down, weights, experts, "silu")


def quantised(dtype: torch.dtype) -> None:
    from pageant.kernels.quantized import Bits, empty_quantized
    from pageant.kernels.triton import TritonKernels

    widths: tuple[Bits, ...] = (8, 5, 4)
    for width in widths:
        weight = empty_quantized((4096, 4096), width, "meta")
        for rows in (1, 512):
            TritonKernels().linear(empty(rows, 4096, dtype=dtype), weight)
        gate_up, down = (empty_quantized(shape, width, "meta") for shape in ((8, 1536, 2048), (8, 2048, 768)))
        x, weights, experts = empty(4, 2048, dtype=dtype), empty(4, 2, dtype=torch.float32), empty(4, 2)
        TritonKernels().moe(x, gate_up, down, weights, experts, "silu")


def sampling() -> None:
    from pageant.kernels.triton import TritonKernels

    floats, ints = (empty(8, dtype=dtype) for dtype in (torch.float32, torch.int32))
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
    TritonKernels().sample(logits, params)
    TritonKernels().top_logprobs(logits, empty(8), 20)


def main(arch: str, dtype_name: str, head_dims: list[int], what: str) -> None:
    triton.runtime.driver.set_active(Driver(arch))  # type: ignore[attr-defined]
    torch.cuda.get_device_properties = lambda device: DEVICES[arch]  # type: ignore[assignment]
    line: dict[str, Any] = {"dtype": dtype_name}
    record(arch, line)
    dtype = getattr(torch, dtype_name)
    for head_dim in head_dims:
        line["head_dim"] = head_dim
        attention(dtype, head_dim)
    if what == "attention":
        return
    line["head_dim"] = 128
    line["windowed"] = True
    attention(dtype, 128, 4096, 30.0)
    line["trees"] = True
    attention(dtype, 128, 4096, trees=True)
    del line["head_dim"], line["windowed"], line["trees"]
    others(dtype)
    quantised(dtype)
    sampling()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], [int(size) for size in sys.argv[3].split(",")], sys.argv[4])
