"""Ratios, bars, the table, and what is published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pageant.scripts.bench.gpu_check.bars import BARS
from pageant.scripts.bench.gpu_check.environment import ROOT, unpack_wheels
from pageant.scripts.bench.gpu_check.facts import tree_digest
from pageant.scripts.bench.gpu_check.figures import Figures
from pageant.scripts.bench.gpu_check.publishing import publish
from pageant.scripts.bench.gpu_check.session import SESSION, SectionResult
from pageant.scripts.bench.gpu_check.table import LINES_MAX, failed, session_table

LIMITS = [
    {"section": "limits", "case": "copy", "us": 1000.0, "bytes": 3e9},  # 3 TB/s
    {"section": "limits", "case": "matrix bf16", "us": 1000.0, "flops": 8e11},  # 800 TFLOP/s
]


def case(section: str, name: str, **figures: Any) -> dict[str, Any]:
    return {"section": section, "case": name, **figures}


def bar(name: str) -> Any:
    (found,) = (bar for bar in BARS if bar.name == name)
    return found


def test_bars_are_ratios_to_what_the_device_did_in_the_same_session() -> None:
    cases = [
        *LIMITS,
        case("attention", "decode 64 x 8000", us=1000.0, bytes=2.4e9),
        case("attention", "prefill 1 x 8192", us=500.0, flops=2e11, rivals={"flash": 450.0, "cudnn": "no"}),
        case("attention", "chunk of 2048 after 6144, 32 decodes", us=1000.0, flops=3e11),
        *(case("rows", name, us=100.0, bytes=size) for name, size in
          (("add_rms_norm", 2.7e8), ("silu_and_mul", 2.4e8), ("rope_and_write_kv", 2.1e8))),
        case("shape8b", "decode 16 x 1000", wall_us=6000.0),
        case("shape8b", "verify 16 x 5", wall_us=7200.0),
        case("engine", "after ready", compiles=0, captures=2),
    ]  # fmt: skip
    figures = Figures(cases)
    found = {one.name: one.found(figures) for one in BARS}
    assert found["decode attention 64 x 8000, of bandwidth"] == pytest.approx(0.8)
    assert found["prefill attention 1 x 8192, of flash"] == pytest.approx(0.9)
    assert found["prefill attention 1 x 8192, of cuDNN"] is None, "it did not run"
    assert found["a chunk of 2048 after 6144 and 32 decodes, of flash's rate"] == pytest.approx(0.675)
    assert found["norm, silu and rope of 8192 rows, of bandwidth"] == pytest.approx(0.7), "the worst of three"
    assert found["verification of 16 x 5, wall over decode of 16"] == pytest.approx(1.2)
    assert found["compiles and captures after ready"] == 2
    assert found["decode attention 256 x 1000, of bandwidth"] is None, "it was not measured"
    assert bar("decode attention 64 x 8000, of bandwidth").met(0.8)
    assert not bar("verification of 16 x 5, wall over decode of 16").met(1.3)
    assert not bar("MoE, 8192 tokens, of grouped_mm").met(0.9), "it has only a good value"


@pytest.mark.parametrize("missing", [None, "int4 down, 4 rows"])
def test_quantised_products_are_compared_as_a_layers_four_at_their_worst_rows(missing: str | None) -> None:
    cases = [
        case(
            "products", f"{kind} {name}, {rows} rows", us=us * (2.0 if kind == "int4" and rows == 4 else 1.0)
        )
        for kind, us in (("bf16", 10.0), ("int4", 4.0))
        for name in ("qkv", "o", "gate_up", "down")
        for rows in (1, 4, 16)
    ]
    found = bar("int4 linear, 1-16 rows, time over bf16").found(
        Figures([one for one in cases if one["case"] != missing])
    )
    assert found == (pytest.approx(0.8) if missing is None else None)


def test_the_table_has_at_most_sixty_lines_and_says_what_is_left_out() -> None:
    tests = [case("kernels", f"test {number}", outcome="failed", error="x" * 500) for number in range(500)]
    results = [
        SectionResult("kernels", "done", 100.0, True),
        SectionResult("warm", "crashed: signal 11", 3.0, False, "a\nb"),
    ]
    lines = session_table(results, [*LIMITS, *tests])
    assert len(lines) == LINES_MAX and max(map(len, lines)) <= 118
    assert "warm: crashed: signal 11: b" in lines
    shown = [line for line in lines if line.startswith(("kernels: test", "warm: crashed"))]
    assert lines[-2] == f"... and {501 - len(shown)} more: see session.json" and len(shown) > 5
    assert lines[-1].startswith("a test failed")


def test_only_tests_and_their_sections_fail_a_session() -> None:
    passed, none = Figures([case("models", "t", outcome="passed")]), Figures([])
    assert not failed(
        [SectionResult("models", "done", 1.0, True), SectionResult("warm", "failed: exit 1", 1.0, False)],
        passed,
    )
    assert failed([], Figures([case("models", "t", outcome="failed")]))
    assert failed([SectionResult("models", "hung: killed after 60 s", 60.0, True)], passed)
    assert failed([SectionResult("models", "no time left", 0.0, True)], none)


def test_a_session_is_published_with_its_machine_commit_and_bars(tmp_path: Path) -> None:
    facts = case("facts", "facts", device="NVIDIA H100", driver="580.1", torch="2.11.0", commit=None)
    facts["tree"] = tree_digest(ROOT)
    cases = [facts, *LIMITS, case("attention", "decode 64 x 8000", us=1000.0, bytes=2.7e9)]
    cases += [case("kernels", "a", outcome="passed"), case("kernels", "b", outcome="failed")]
    sections = [
        {"name": "kernels", "status": "hung: killed after 9 s", "seconds": 9.0, "tests": True, "tail": ""}
    ]
    (tmp_path / SESSION).write_text(json.dumps({"sections": sections, "seconds": 9.0, "cases": cases}))
    assert publish(tmp_path, tmp_path / "gpu.json") == 0
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["machine"] == {"device": "NVIDIA H100", "driver": "580.1", "torch": "2.11.0"}
    assert not written["commit"].startswith("another tree")
    assert written["tests"] == {"passed": 1, "failed": 1} and written["failed_tests"] == ["b"]
    expected = {"found": 0.9, "must": 0.8, "good": 0.9, "met": True}
    assert written["bars"]["decode attention 64 x 8000, of bandwidth"] == expected
    assert written["sections_that_did_not_end_well"] == ["kernels: hung: killed after 9 s"]
    facts["tree"] = "of other code"
    (tmp_path / SESSION).write_text(json.dumps({"sections": [], "seconds": 9.0, "cases": [facts]}))
    publish(tmp_path, tmp_path / "gpu.json")
    assert json.loads((tmp_path / "gpu.json").read_text())["commit"].startswith("another tree")


@pytest.mark.parametrize("written", [None, "{", '{"sections": [], "cases": []}'])
def test_a_folder_without_a_session_is_refused(
    tmp_path: Path, written: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    if written is not None:
        (tmp_path / SESSION).write_text(written)
    assert publish(tmp_path, tmp_path / "gpu.json") == 2
    assert str(tmp_path) in capsys.readouterr().err and not (tmp_path / "gpu.json").exists()


def test_wheels_are_unpacked_that_fit_this_python_and_are_not_installed(tmp_path: Path) -> None:
    import sys
    import zipfile

    own = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for name, tags in (
        ("lonely", f"{own}-{own}-manylinux_2_28_x86_64"),
        ("stable", "cp39-abi3-manylinux_2_28_x86_64"),
        ("pure", "py3-none-any"),
        ("foreign", "cp399-cp399-manylinux_2_28_x86_64"),
        ("pytest", "py3-none-any"),
    ):
        with zipfile.ZipFile(wheels / f"{name}-1.0-{tags}.whl", "w") as archive:
            archive.writestr(f"{name}/__init__.py", "")
    packages = tmp_path / "packages"
    packages.mkdir()
    (packages / "of_before.py").write_text("")
    assert unpack_wheels(wheels, packages) == ["lonely", "pure", "stable"]
    assert sorted(file.name for file in packages.iterdir()) == ["lonely", "pure", "stable"]
    assert unpack_wheels(tmp_path / "none", packages) == []


def test_every_wheel_that_is_carried_has_a_tested_version() -> None:
    script = (ROOT / "scripts" / "gpu-wheels").read_text()
    (names,) = (
        line[len("packages=(") : -1].split() for line in script.splitlines() if line.startswith("packages=(")
    )
    pinned = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert {"msgspec", "pyzmq", "pytest-asyncio"} <= set(names) <= pinned
