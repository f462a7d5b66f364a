"""Each instruction set computes the same, and the best is taken."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pageant.kernels.base import AttentionBatch, SamplingTensors
from pageant.kernels.cpu import CpuKernels, levels
from pageant.kernels.reference import ReferenceKernels


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_level_computes_what_the_reference_does(
    leveled: CpuKernels,
    reference: ReferenceKernels,
    make_batch: Callable[..., AttentionBatch],
    make_params: Callable[..., SamplingTensors],
    dtype: torch.dtype,
) -> None:
    generator = torch.Generator().manual_seed(1)
    batch = make_batch([(1, 600), (9, 40), (70, 70), (0, 3), (1, 17)], 4, 300, generator)
    keys, values = (torch.randn(300, 2, 4, 37, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(81, 6, 37, generator=generator).to(dtype)
    weight = torch.randn(37, 37, generator=generator).to(dtype)
    close = {
        torch.float32: {"atol": 1e-4, "rtol": 1e-5},
        torch.bfloat16: {"atol": 0.13, "rtol": 0.01},
        torch.float16: {"atol": 0.02, "rtol": 0.002},
    }[dtype]
    for window, softcap in ((None, None), (20, 5.0)):
        found, expected = (
            kernels.paged_attention(query, keys, values, batch, 0.3, window, softcap)
            for kernels in (leveled, reference)
        )
        torch.testing.assert_close(found, expected, atol=close["atol"] / 4, rtol=close["rtol"])
    rows = query[:, 0]
    for name, arguments in {
        "linear": (rows[:5], weight),
        "rms_norm": (rows, weight[0], 1e-6),
        "gelu": (rows, False),
        "silu_and_mul": (query[:, 1:3].flatten(1),),
    }.items():
        found, expected = (getattr(kernels, name)(*arguments) for kernels in (leveled, reference))
        torch.testing.assert_close(found, expected, **close)
    params = make_params(6, top_k=[0, 3, 50, 0, 0, 9], top_p=[1, 1, 0.9, 0.5, 1, 1], seed=torch.arange(6))
    logits = torch.randn(6, 1003, generator=generator) * 3
    assert torch.equal(leveled.sample(logits, params), reference.sample(logits, params))


AVX512 = "avx512f avx512bw avx512vl avx512dq avx2 fma f16c avx512_bf16 avx512_vnni"
UNITS = "amx_tile amx_bf16 amx_int8"


@pytest.mark.parametrize(
    ("vendor", "flags", "best"),
    [
        ("AuthenticAMD", AVX512, ["avx512_bf16", "avx512_vnni"]),
        ("GenuineIntel", AVX512, ["avx512_bf16", "avx512_vnni"]),
        ("GenuineIntel", f"{AVX512} avx512_fp16", ["avx512_vnni", "avx512_bf16"]),
        ("GenuineIntel", f"{AVX512} avx512_fp16 {UNITS}", ["amx", "avx512_vnni", "avx512_bf16"]),
        ("AuthenticAMD", f"{AVX512} avx512_fp16", ["avx512_bf16", "avx512_vnni"]),
    ],
)
def test_pairs_of_bfloat16_come_after_floats_where_they_are_slower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vendor: str, flags: str, best: list[str]
) -> None:
    info = tmp_path / "cpuinfo"
    core = f"processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\n"
    info.write_text(core + core.replace(": 0", ": 1"))
    monkeypatch.setattr(levels, "CPU_INFO", info)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.delenv("PAGEANT_CPU_LEVEL", raising=False)
    assert levels.levels_here() == [*best, "avx512", "avx2", "portable", "emulated_amx"]
