"""The kernels' own threads: as many as torch is told, quiet when idle, and right under any caller."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pageant.kernels.cpu import CpuKernels
from pageant.kernels.cpu.build import SOURCES, find_compiler
from pageant.kernels.cpu.library import load_library

COMES_TO_EVERY_JOB = r"""
#include "base/threads.h"
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

EXPECTS = r"""
#include "base/expected.h"
#include "base/threads.h"
#include <cstdio>
#include <sys/mman.h>

constexpr int64_t SIZE = 64 << 20, PIECE = 4096;
static int threads() { return 3; }
EXPORT void pageant_use_threads(void*);

int64_t fetched(const char* at, int64_t pieces, int64_t index) {
    expect({at, PIECE, pieces * PIECE});
    int64_t times = 0;
    while (fetch_expected(index, 3)) times++;
    return times * 512;
}

int main() {
    pageant_use_threads((void*)threads);
    char* memory = (char*)mmap(nullptr, SIZE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int64_t index = 0; index < 3; index++) printf("%ld ", long(fetched(memory + index, 7, index)));
    printf("%ld ", long(fetched(memory, SIZE / PIECE, 0)));
    munmap(memory, SIZE);
    std::atomic<long> done{0};
    for (int64_t call = 0; call < 2000; call++) {
        expect({memory + call, PIECE, SIZE});
        parallel_for(5, [&](int64_t) { done++; });
    }
    expect({});
    printf("%ld %d", done.load(), fetch_expected(0, 3));
    return 0;
}
"""


@pytest.fixture
def run_program(tmp_path: Path) -> Callable[[str], str]:
    """Compiles a program with the library's threads, runs it and returns what it printed."""

    def run(source: str) -> str:
        (tmp_path / "main.cpp").write_text(source)
        compiler = find_compiler()
        assert compiler is not None
        sources = [tmp_path / "main.cpp", SOURCES / "base/threads.cpp", SOURCES / "base/expected.cpp"]
        command = [
            *compiler,
            "-std=c++17",
            "-O2",
            "-pthread",
            f"-I{SOURCES}",
            *sources,
            "-o",
            tmp_path / "main",
        ]
        subprocess.run(command, check=True)
        done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    return run


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
    x = torch.randn(32, 128)  # without AVX-512, torch multiplies more rows, whose bits are others
    torch.set_num_threads(1)
    expected = cpu.linear(x, weight)
    for turn in range(300):
        torch.set_num_threads(1 + turn % 4)
        rows, outputs = 1 + turn % 32, 60 + turn
        assert torch.equal(cpu.linear(x[:rows], weight[:outputs]), expected[:rows, :outputs])
    torch.set_num_threads(before)


def test_every_thread_comes_to_every_job(run_program: Callable[[str], str]) -> None:
    """Each of a job's tasks waits for the others to be taken, job after job: a thread that misses one ends it all."""
    run_program(COMES_TO_EVERY_JOB)


def test_what_is_expected_comes_in_turns_and_may_be_gone(run_program: Callable[[str], str]) -> None:
    """Bring seven pieces by three threads: three, two and two; of many, 256 KiB each; gone memory harms nobody."""
    assert run_program(EXPECTS).split() == [*("12288", "8192", "8192"), "262144", "10000", "0"]


def test_idle_threads_use_no_time(cpu: CpuKernels) -> None:
    cpu.linear(torch.randn(3, 64), torch.randn(2048, 64))
    began, used = time.perf_counter(), time.process_time()
    threading.Event().wait(0.05)
    share = (time.process_time() - used) / (time.perf_counter() - began)
    assert share < 0.2, "50 microseconds of spinning for each thread, and what else runs in this process"
