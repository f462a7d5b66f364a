"""Decode steps padded to graphs' sizes, with a stand-in for CUDA's capture: it plays again by calling again."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.cuda import CudaRunner
from pageant.actors.executor.runners.graphs import CudaCapture, padded_context, padded_size
from pageant.actors.executor.runners.memory import device_budget
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.scripts.samples.steps import step_inputs

BLOCKS, BLOCK_SIZE = 40, 4


class Replays:
    """Counts what is captured and what is played."""

    def __init__(self, refuse=False):
        self.captured = self.played = 0
        self.refuse = refuse

    def __call__(self, run):
        if self.refuse:
            raise RuntimeError("operation not permitted when stream is capturing\nand more")
        self.captured += 1

        def replay():
            self.played += 1
            return run()

        return replay


@pytest.fixture
def cuda_runner(demo, options):
    def make(capture, tokens_max=64):
        config = RunnerConfig(model=demo, **options, max_num_batched_tokens=tokens_max)
        return CudaRunner(config, capture=capture)

    return make


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_padded_and_replayed_steps_draw_the_same_tokens(cuda_runner, generate, demo, options, temperature):
    replays = Replays()
    drawn = generate(cuda_runner(replays), 12, temperature)
    assert drawn == generate(TorchRunner(RunnerConfig(model=demo, **options)), 12, temperature)
    assert (replays.captured, replays.played) == (2, 11), (
        "the prompts and the first decode are computed, then captured"
    )


def test_a_step_with_adapters_is_no_replay_of_one_without(cuda_runner, generate, demo, options, adapters):
    replays, options["adapters"] = Replays(), adapters
    runner = cuda_runner(replays)
    bare = generate(runner, 6)
    assert (replays.captured, replays.played) == (2, 5)
    adapted = generate(runner, 6, adapters={0: "one", 3: "two"})
    assert (replays.captured, replays.played) == (2, 5), "none of these steps was"
    assert adapted == generate(
        TorchRunner(RunnerConfig(model=demo, **options)), 6, adapters={0: "one", 3: "two"}
    )
    assert [step[1] for step in adapted] == [step[1] for step in bare], "row 2 has none"
    assert all([step[place] for step in adapted] != [step[place] for step in bare] for place in (0, 2)), (
        "they are meant to matter"
    )
    assert generate(runner, 6) == bare


def test_padding_writes_to_the_spare_block_alone(cuda_runner, generate):
    runner = cuda_runner(Replays())
    generate(runner, 3)
    keys = runner._kv_caches[0][0]
    assert len(keys) == BLOCKS + 1 and bool(keys[BLOCKS, :, 0].any())
    assert not bool(keys[BLOCKS, :, 1:].any())
    used = {row * 9 + block for row in (0, 2, 3) for block in (3, 1, 4, 0, 5, 8, 2)}
    assert not any(bool(keys[block].any()) for block in set(range(BLOCKS)) - used)


def test_what_cannot_be_captured_is_computed_and_said_once(cuda_runner, generate, demo, options, caplog):
    drawn = generate(cuda_runner(Replays(refuse=True)), 4)
    assert drawn == generate(TorchRunner(RunnerConfig(model=demo, **options)), 4)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        "steps are computed without CUDA graphs: operation not permitted when stream is capturing"
    ]


def test_after_its_preparation_a_runner_captures_nothing(cuda_runner, generate, demo, options):
    replays = Replays()
    runner = cuda_runner(replays)
    runner.prepare()
    captured = replays.captured
    assert captured == runner.preparations["graphs_captured"] == len(set(runner._graphs.shapes()))
    used = runner.num_blocks
    assert not any(bool(part[:used].any()) for cache in runner._kv_caches for part in cache), (
        "but in the spare block"
    )
    assert generate(runner, 4, 1.0) == generate(TorchRunner(RunnerConfig(model=demo, **options)), 4, 1.0)
    assert (replays.captured, replays.played) == (captured, 5)


@pytest.mark.parametrize("tokens_max", [10, 50, 64])
def test_shapes_hold_every_plain_step_there_can_be(cuda_runner, tokens_max):
    graphs = cuda_runner(Replays(), tokens_max)._graphs
    shapes = set(graphs.shapes())
    for count in range(1, 5):
        for new in range(1, tokens_max + 1):
            if count * new <= tokens_max:
                assert graphs._shape_of(step_inputs([(new, 64)] * count)) in shapes
    assert graphs._shape_of(step_inputs([(1, 64)] * 5)) is None, "there are 4 rows"


STEPS = {
    "a prompt": ([(37, 37)], False, 64),
    "prompts and decodes": ([(9, 9), (1, 30), (20, 40), (1, 5)], False, 32),
    "drafts": ([(3, 20), (1, 7), (5, 30)], True, 32),
    "drafts of one": ([(2, 20)], True, 2),
}


@pytest.mark.parametrize("name", STEPS)
@torch.inference_mode()
def test_a_padded_step_has_the_hidden_states_of_its_tokens(cuda_runner, options, name):
    lengths, verifies, tokens = STEPS[name]
    options |= {"block_size": 16, "num_blocks": 8}
    runner = cuda_runner(Replays())
    generator = torch.Generator().manual_seed(1)
    for cache in runner._kv_caches:
        for part in cache:
            part.normal_(generator=generator)
    inputs = step_inputs(lengths, draws_after_each=verifies)
    if verifies:
        inputs = replace(inputs, verifying=object())
    right = runner._compute(inputs).clone()
    assert runner._graphs.takes(inputs)
    for _ in range(2):  # computed, then played
        torch.testing.assert_close(runner._graphs.run(inputs), right, atol=1e-5, rtol=1e-5)
    assert [shape.tokens for shape in runner._graphs._slots] == [tokens]


def test_steps_with_trees_are_no_replays(cuda_runner):
    inputs = step_inputs([(3, 20)], draws_after_each=True)
    trees = replace(inputs, ancestors=inputs.positions, verifying=object())
    graphs = cuda_runner(Replays())._graphs
    assert graphs.takes(inputs) and not graphs.takes(trees)


class CudaStreams:
    """Stand-in for what a capture touches of torch.cuda. `graph` ends it and then restores the stream, as torch does;
    so where ending it raises, the stream stays."""

    def __init__(self, monkeypatch, refuses):
        self.stream, self.synchronized, self.refuses = "the caller's", 0, refuses
        for name in ("current_stream", "set_stream", "synchronize", "graph", "CUDAGraph"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def current_stream(self):
        return self.stream

    def set_stream(self, stream):
        self.stream = stream

    def synchronize(self):
        self.synchronized += 1

    def CUDAGraph(self):
        return SimpleNamespace(pool=lambda: "pool", replay=lambda: None)

    @contextlib.contextmanager
    def graph(self, graph, **options):
        before, self.stream = self.stream, "the capture's"
        try:
            yield
        finally:
            if self.refuses:
                raise RuntimeError("the capture was invalidated")
        self.stream = before


@pytest.mark.parametrize("error", [RuntimeError("not permitted"), KeyboardInterrupt(), None])
def test_a_refused_capture_leaves_the_callers_stream(monkeypatch, error):
    cuda = CudaStreams(monkeypatch, refuses=True)

    def run():
        assert cuda.stream == "the capture's"
        if error is not None:
            raise error
        return torch.zeros(1)

    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        CudaCapture()(run)
    assert (cuda.stream, cuda.synchronized) == ("the caller's", 1)


def test_a_capture_returns_its_result_again_and_shares_its_pool(monkeypatch):
    cuda = CudaStreams(monkeypatch, refuses=False)
    capture, result = CudaCapture(), torch.zeros(1)
    assert capture(lambda: result)() is result
    assert (cuda.stream, capture._pool) == ("the caller's", "pool")


@pytest.mark.parametrize("error", [ValueError("odd\nand more"), AssertionError()])
def test_whatever_a_capture_raises_the_step_was_computed(cuda_runner, generate, demo, options, caplog, error):
    def refuse(run):
        raise error

    assert generate(cuda_runner(refuse), 4) == generate(TorchRunner(RunnerConfig(model=demo, **options)), 4)
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    reason = "odd" if str(error) else "AssertionError"
    assert said == [f"steps are computed without CUDA graphs: {reason}"]


def test_without_graphs_the_same_tokens_are_drawn(cuda_runner, generate, demo, options):
    assert generate(cuda_runner(None), 4, 1.0) == generate(
        TorchRunner(RunnerConfig(model=demo, **options)), 4, 1.0
    )


@pytest.mark.parametrize(("rows", "size"), [(1, 1), (3, 4), (9, 16), (200, 224), (512, 512), (513, None)])
def test_a_batch_is_padded_to_the_next_size(rows, size):
    assert padded_size(rows) == size


@pytest.mark.parametrize(
    ("longest", "most", "reach"),
    [(1, 100_000, 2048), (2048, 100_000, 2048), (2049, 100_000, 100_000), (1, 4095, 4095), (1, 4096, 2048)],
)
def test_lengths_are_in_two_ranges_up_to_the_models_own(longest, most, reach):
    assert padded_context(longest, most) == reach


def test_the_budget_is_what_others_the_weights_and_a_step_leave_of_the_share():
    assert device_budget(free=70, total=100, share=0.9, step=5) == 55
    assert device_budget(free=4, total=100, share=0.9, step=5) == 0


def test_every_row_of_a_full_batch_has_a_graph(cuda_runner):
    runner = cuda_runner(Replays())
    assert runner._graphs is not None and runner._graphs._rows_max == 4
    (table,) = runner._graphs._tables
    assert torch.equal(table, torch.full((4, 16), BLOCKS, dtype=torch.int32))
