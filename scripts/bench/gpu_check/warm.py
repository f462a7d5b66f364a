"""Compiles what the sections after this one launch, in many processes at once, before they are timed."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator

import torch

from pageant import kernels
from pageant.kernels.base import Kernels
from pageant.scripts.bench.gpu_check.attention import attention_cases
from pageant.scripts.bench.gpu_check.cases import Recorder, describe
from pageant.scripts.bench.gpu_check.engine import config_06b
from pageant.scripts.bench.gpu_check.limits import limit_cases
from pageant.scripts.bench.gpu_check.measuring import BLOCK, Bench, Case, Work
from pageant.scripts.bench.gpu_check.models import Stepper, random_decoder, read_spec
from pageant.scripts.bench.gpu_check.products import product_cases
from pageant.scripts.bench.gpu_check.rows import row_cases
from pageant.scripts.bench.gpu_check.sampling import sampling_cases
from pageant.scripts.bench.gpu_check.shape8b import Lengths, config_8b, shape_steps
from pageant.scripts.bench.gpu_check.tune import tuning_cases
from pageant.scripts.cubins.compiling import DEVICES, compile_launches
from pageant.scripts.samples.steps import step_inputs

__all__ = ["compile_in_parallel", "compile_share", "launching_cases", "run"]

_PROCESSES_MAX = 14
_LAST_SECONDS = 10.0  # that the last compilation of a process may take
_OTHERWISE = "sm_90"  # what is compiled for where there is no GPU


def run(recorder: Recorder, tiny: bool) -> None:
    """Compile for all sections."""
    compile_in_parallel(recorder, tiny, "all")


def compile_in_parallel(recorder: Recorder, tiny: bool, what: str) -> None:
    """Compile in as many processes as there are cores, and record what each did."""
    processes = min(_PROCESSES_MAX, len(os.sched_getaffinity(0)))
    began, seconds = time.monotonic(), recorder.seconds_left - _LAST_SECONDS
    command = [
        sys.executable,
        "-m",
        "pageant.scripts.bench.gpu_check.warm",
        what,
        "--arch",
        _architecture(tiny),
    ]
    command += ["--seconds", f"{seconds:.0f}", *(["--tiny"] if tiny else [])]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    running = [
        subprocess.Popen(
            [*command, "--share", f"{index}/{processes}"], env=environment, stdout=subprocess.PIPE, text=True
        )
        for index in range(processes)
    ]
    for index, process in enumerate(running):
        try:
            said = process.communicate(timeout=max(0.1, recorder.seconds_left))[0].splitlines()
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            said = []
        done = json.loads(said[-1]) if said else {"error": f"no result; it ended with {process.returncode}"}
        recorder.add(f"compiling, process {index}", **done)
    recorder.add("compiling", seconds=round(time.monotonic() - began, 1), processes=processes)


def _architecture(tiny: bool) -> str:
    if tiny or not torch.cuda.is_available():
        return _OTHERWISE
    properties = torch.cuda.get_device_properties(0)
    arch = f"sm_{properties.major}{properties.minor}"
    if arch not in DEVICES:
        raise ValueError(f"{properties.name} is {arch}; expected one of {', '.join(DEVICES)}")
    return arch


def compile_share(
    what: str, arch: str, share: tuple[int, int], seconds: float, *, tiny: bool
) -> dict[str, object]:
    """Compile this process's share of the variants; returns how many, and what failed."""
    ends_at = time.monotonic() + seconds
    compiled: list[float] = []
    failed: dict[str, str] = {}
    compile_launches(arch, lambda function, kernel, took: compiled.append(took), share=share)
    skipped = 0
    for case in launching_cases(Bench(torch.device("meta"), tiny=tiny), what):
        if time.monotonic() > ends_at:
            skipped += 1
            continue
        try:
            case.prepare().runs[0]()
        except Exception as error:
            failed[case.name] = describe(error)
    figures = {"compiled": len(compiled), "seconds": round(sum(compiled), 1), "not_reached": skipped}
    return {**figures, **({"error": f"{len(failed)} cases: {failed}"[:600]} if failed else {})}


def launching_cases(bench: Bench, what: str) -> Iterator[Case]:
    """Yield what the sections launch, on tensors without memory; `what` is "all", or "tune" for that section."""
    ours = kernels.load("triton", "meta")
    if what == "tune":
        yield from tuning_cases(bench, ours)
        return
    for section in (attention_cases, row_cases, product_cases, sampling_cases):
        yield from section(bench, ours)
    yield from (case for case in limit_cases(bench) if "kernel" in case.name)
    for _, lengths, draws_after_each in shape_steps(bench):
        yield _step(bench, ours, config_8b(bench), lengths, draws_after_each)
    for lengths in _engine_steps(bench):
        yield _step(bench, ours, config_06b(bench), lengths, False)


def _engine_steps(bench: Bench) -> list[Lengths]:
    """Return steps like those of the section `engine`: prompts of one length, then decodes."""
    of = bench.of
    sizes = ((1, of(128, 20)), (16, of(512, 20)), (64, of(128, 20)))
    return [
        lengths
        for count, length in sizes
        for lengths in ([(length, length)] * count, [(1, length + 8)] * count)
    ]


def _step(
    bench: Bench, ours: Kernels, config: dict[str, object], lengths: Lengths, draws_after_each: bool
) -> Case:
    def prepare() -> Work:
        # One layer launches what all do.
        spec = read_spec({**config, "num_hidden_layers": 1})
        decoder = random_decoder(bench, ours, spec)
        blocks = sum(-(-context // BLOCK) for _, context in lengths)
        inputs = step_inputs(lengths, draws_after_each=draws_after_each)
        return Work([Stepper(bench, decoder, blocks, len(lengths)).step(inputs)])

    return Case(f"{config['model_type']}, {len(lengths)} x {lengths[0]}", prepare)


def main() -> None:
    """Compile one share in this process, and print what was done as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("all", "tune"))
    parser.add_argument("--arch", choices=DEVICES, default=_OTHERWISE)
    parser.add_argument("--share", default="0/1", help="INDEX/COUNT")
    parser.add_argument("--seconds", type=float, default=1e9)
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    index, _, count = options.share.partition("/")
    with contextlib.redirect_stdout(sys.stderr), torch.inference_mode():
        share = int(index), int(count)
        done = compile_share(options.what, options.arch, share, options.seconds, tiny=options.tiny)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
