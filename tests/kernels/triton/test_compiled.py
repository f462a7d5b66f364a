"""What would run on a GPU compiles for it, down to machine code, without one being here."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from pageant.scripts.bench.gpu_check.compiling import longest_loop

ATTENTION = {"decode", "merge_splits", "prefill"}
SAMPLING = {"find_limits", "draw", "choose", "scan_logits", "merge_scans"}
EXPERTS = {"choose_experts", "order_places", "expert_gate_up", "expert_down", "weigh_experts"}
PRODUCTS = {"multiply_few", "widen_rows"}
POINTWISE = {"norm_rows", "activate_rows", "prepare_heads", "write_tokens", "copy_blocks"}


def compiled(arch: str, dtype: str, what: str) -> list[dict[str, int | str]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [sys.executable, "-m", "pageant.scripts.bench.gpu_check.variants"]
    result = subprocess.run(
        [*program, "--arch", arch, "--dtype", dtype, "--what", what],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("arch", "dtype", "what", "kernels"),
    [
        ("sm_90", "bfloat16", "all", ATTENTION | SAMPLING | EXPERTS | PRODUCTS | POINTWISE),
        ("sm_80", "float16", "attention", ATTENTION),
        ("sm_100", "bfloat16", "attention", ATTENTION),
    ],
)
def test_every_kernel_fits_its_device_without_spilling(
    arch: str, dtype: str, what: str, kernels: set[str]
) -> None:
    lines = compiled(arch, dtype, what)
    assert {line["kernel"] for line in lines} == kernels
    for line in lines:
        assert int(line["shared"]) <= int(line["shared_max"]), line
        assert int(line["stack"]) <= 16, line  # bytes: a word or two may be put aside, not a tile
        assert line["kernel"] not in ("decode", "prefill") or int(line["loop"]) > 100, line


def test_the_longest_loop_is_found_in_a_listing() -> None:
    """The outer loop holds an inner one, and the jump at the end pads the kernel."""
    code = {
        ".L_x_0:": ["S2R R0, SR_TID.X", "FADD R1, R1, R1"],
        ".L_x_1:": ["FFMA R1, R1, R1, R1", "IADD3 R2, R2, 0x1, RZ", "@P0 BRA `(.L_x_1)"],
        ".L_x_2:": ["IADD3 R3, R3, 0x1, RZ", "@P1 BRA `(.L_x_0)", "EXIT"],
        ".L_x_3:": ["BRA `(.L_x_3)"],
    }
    lines, address = [], 0
    for label, instructions in code.items():
        lines.append(label)
        for instruction in instructions:
            lines.append(f"        /*{address:04x}*/                   {instruction} ;")
            address += 16
    assert longest_loop("\n".join(lines)) == 3
    assert longest_loop("") == 0
