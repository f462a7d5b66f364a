"""Kernels compile for a GPU, down to machine code, without one being here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pageant.scripts.cubins.compiling import longest_loop

ATTENTION = {"decode", "merge_splits", "prefill"}
SAMPLING = {
    *("mask_part", "survey", "narrow", "collect", "settle", "draw", "choose"),
    *("scan_logits", "merge_scans"),
}
EXPERTS = {"choose_experts", "order_places", "expert_gate_up", "expert_down", "sum_experts"}
PRODUCTS = {"multiply_sliced", "multiply_quantized", "merge_parts", "widen_rows"}
RECURRENT = {"convolve", "pass_delta_rule", "pass_state_space"}
POINTWISE = {"norm_rows", "activate_rows", "prepare_heads", "write_tokens", "copy_blocks"}

INSTRUCTIONS_MAX = {(8, 8): 4.1, (4, 8): 4.5, (8, 16): 4.0, (4, 16): 4.5}
"""Instructions of a thread for each weight, by bits and by rows of a tile; with more, bfloat16's product is faster."""


def compiled(arch: str, dtype: str, what: str) -> list[dict[str, int | str]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    program = [sys.executable, "-m", "pageant.scripts.cubins.variants"]
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
        ("sm_90", "bfloat16", "core", ATTENTION | SAMPLING | EXPERTS | PRODUCTS | POINTWISE | RECURRENT),
        ("sm_80", "float16", "attention", ATTENTION),
        ("sm_80", "bfloat16", "products", PRODUCTS - {"widen_rows"} | EXPERTS - {"choose_experts"}),
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
        if line["kernel"] in PRODUCTS | EXPERTS:
            # The registers would be written again, with the next tile's weights, while the product reads them.
            assert line["from_registers"] == 0, line
        if line["kernel"] == "multiply_sliced":
            most = INSTRUCTIONS_MAX.get((int(line["bits"]), int(line["rows"])))
            assert most is None or 0 < float(line["per_weight"]) <= most, line


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


BEFOREHAND = """
import torch, triton
from triton.runtime.jit import JITFunction
from pageant.kernels.triton import TritonKernels
from pageant.kernels.triton.loading import is_loading, num_loaded
from pageant.kernels.triton.precompiling import Driver, collect_launches, compile_in_parallel

def launch():
    for rows in (3, 16):
        TritonKernels().silu_and_mul(torch.empty(rows, 64, dtype=torch.bfloat16, device="meta"))
    x = torch.empty(4, 64, dtype=torch.bfloat16, device="meta")
    TritonKernels().rms_norm(x, x[0], 1e-6)

with collect_launches() as found:
    launch()
assert len(found) == 2, found  # rows make no variant
odd = torch.empty(65, dtype=torch.bfloat16)[1:]  # at an address that kernels are not compiled for here
with collect_launches() as none:
    TritonKernels().rms_norm(odd[None], odd, 1e-6)
assert not none
assert compile_in_parallel(list(found), "sm_90", 2) == 2
assert compile_in_parallel(list(found), "sm_90", 2) == 0, "it was done before"

triton.runtime.driver.set_active(Driver("sm_90"))
hits, run, listener = [], JITFunction.run, triton.knobs.compilation.listener
def heard(*, cache_hit, **more):
    assert is_loading()
    hits.append(cache_hit)
    listener(cache_hit=cache_hit, **more)
triton.knobs.compilation.listener = heard
def warm(self, *arguments, warmup, **options):
    return run(self, *arguments, warmup=True, **options)
JITFunction.run = warm
launch()
assert hits == [True, True] and num_loaded() == 2 and not is_loading(), hits
"""


def test_what_was_compiled_beforehand_is_not_compiled_again(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(tmp_path)
    result = subprocess.run(
        [sys.executable, "-c", BEFOREHAND], capture_output=True, text=True, env=environment, check=False
    )
    assert result.returncode == 0, result.stderr[-3000:]


def test_a_kernel_that_does_not_compile_is_left_to_the_step_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from pageant.kernels.triton.precompiling import compile_in_parallel

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    launch = json.dumps(["pageant.kernels.triton.pointwise", "no_such_kernel", [], {}])
    assert compile_in_parallel([launch], "sm_90", 2) == 1
    assert "no_such_kernel" in caplog.text
    assert compile_in_parallel([launch], "sm_90", 2) == 1, "it was not done"
