"""The kernels' own threads: as many as torch is told, quiet when idle, and right under any caller."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest
import torch

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.build import SOURCES, find_compiler
from pageant.kernels.cpu.library import load_library

COMES_TO_EVERY_JOB = r"""
#include "threads.h"
#include <chrono>
#include <cstdio>
#include <thread>

constexpr int THREADS = 3, JOBS = 3000;
constexpr auto PATIENCE = std::chrono::seconds(20);
static int threads() { return THREADS; }
EXPORT void pageant_use_threads(void*);

int main() {
    pageant_use_threads((void*)threads);
    for (int job = 0; job < JOBS; job++) {
        std::atomic<int> here{0};
        std::atomic<bool> missed{false};
        const auto until = std::chrono::steady_clock::now() + PATIENCE;
        parallel_for(THREADS, [&](int64_t) {
            here++;
            while (here < THREADS && !missed) {
                std::this_thread::yield();
                if (std::chrono::steady_clock::now() > until) missed = true;
            }
        });
        if (missed) return printf("a thread did not come to job %d\n", job), 1;
    }
    return 0;
}
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_torchs_number_of_threads_is_ours(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert load_library().thread_count() == threads
    torch.set_num_threads(before)


def test_no_second_openmp_runtime_is_loaded() -> None:
    load_library()
    maps = Path("/proc/self/maps").read_text().splitlines()
    runtimes = {line.split()[-1] for line in maps if Path(line.split()[-1]).name.startswith("libgomp")}
    assert len([path for path in runtimes if "torch" in path]) == 1
    assert not [path for path in runtimes if path.startswith("/usr")]


def test_callers_at_once_each_get_their_own_results(cpu: CpuKernels) -> None:
    """One has the workers, the others compute alone; jobs follow so closely that a mix-up would show."""
    weights = [torch.randn(512, 64) for _ in range(4)]
    x = torch.randn(3, 64)
    expected = [cpu.linear(x, weight) for weight in weights]
    wrong: list[int] = []

    def call(index: int) -> None:
        torch.set_num_threads(2)
        for _ in range(400):
            if not torch.equal(cpu.linear(x, weights[index]), expected[index]):
                wrong.append(index)

    callers = [threading.Thread(target=call, args=(index,)) for index in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_jobs_of_changing_width_and_size_all_complete(cpu: CpuKernels) -> None:
    before, weight = torch.get_num_threads(), torch.randn(700, 128)
    x = torch.randn(40, 128)
    torch.set_num_threads(1)
    expected = cpu.linear(x, weight)
    for turn in range(300):
        torch.set_num_threads(1 + turn % 4)
        rows, outputs = 1 + turn % 40, 60 + turn
        assert torch.equal(cpu.linear(x[:rows], weight[:outputs]), expected[:rows, :outputs])
    torch.set_num_threads(before)


def test_every_thread_comes_to_every_job(tmp_path: Path) -> None:
    """Each of a job's tasks waits for the others to be taken, job after job: a thread that misses one ends it all."""
    (tmp_path / "main.cpp").write_text(COMES_TO_EVERY_JOB)
    compiler = find_compiler()
    assert compiler is not None
    sources = [str(tmp_path / "main.cpp"), str(SOURCES / "threads.cpp")]
    program = str(tmp_path / "main")
    command = [compiler, "-std=c++17", "-O2", "-pthread", f"-I{SOURCES}", *sources, "-o", program]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_idle_threads_use_no_time(cpu: CpuKernels) -> None:
    cpu.linear(torch.randn(3, 64), torch.randn(2048, 64))
    began, used = time.perf_counter(), time.process_time()
    threading.Event().wait(0.05)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    assert share < 0.2, "50 microseconds of spinning for each thread, and what else runs in this process"
