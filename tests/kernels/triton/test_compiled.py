"""What would run on a GPU compiles for it, down to machine code, without one being here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ATTENTION = {"decode", "merge_splits", "prefill"}
SAMPLING = {"find_limits", "draw", "choose", "scan_logits", "merge_scans"}
EXPERTS = {"choose_experts", "order_places", "expert_gate_up", "expert_down", "weigh_experts"}
PRODUCTS = {"multiply_few", "widen_rows"}
POINTWISE = {"norm_rows", "activate_rows", "prepare_heads", "write_tokens", "copy_blocks"}


def compiled(arch: str, dtype: str, head_dims: str, what: str) -> list[dict[str, int | str]]:
    program = Path(__file__).parent / "compiling.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    result = subprocess.run(
        [sys.executable, str(program), arch, dtype, head_dims, what],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arch", "dtype", "head_dims", "what", "kernels"),
    [
        ("sm_90", "bfloat16", "64,128,256", "all", ATTENTION | SAMPLING | EXPERTS | PRODUCTS | POINTWISE),
        ("sm_80", "float16", "128", "attention", ATTENTION),
    ],
)
def test_every_kernel_fits_its_device_without_spilling(
    arch: str, dtype: str, head_dims: str, what: str, kernels: set[str]
) -> None:
    lines = compiled(arch, dtype, head_dims, what)
    assert {line["kernel"] for line in lines} == kernels
    for line in lines:
        assert int(line["shared"]) <= int(line["shared_max"]), line
        assert int(line["stack"]) <= 16, line  # bytes: a word or two may be put aside, not a tile
