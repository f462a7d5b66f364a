"""Small steps as recorded calls of kernels draw the tokens that steps computed by Python draw."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pageant.actors.executor.batch.batch import Batch
from pageant.actors.executor.guided.pending_sample import PendingSample
from pageant.actors.executor.runners.config import RunnerConfig
from pageant.actors.executor.runners.programs import _Kind
from pageant.actors.executor.runners.runner import TorchRunner
from pageant.kernels.cpu import CpuKernels
from pageant.protocol.arrays import bools, int32, int64
from pageant.protocol.guiding import TokenMasks
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence, StepPlan
from pageant.protocol.structured_outputs import StructuredOutputsParams


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_draw_the_same_tokens(generate, demo, options, temperature, dtype):
    runner = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu", "dtype": dtype}))
    without = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu", "dtype": dtype}))
    without._passes._programs = None
    assert generate(runner, 12, temperature) == generate(without, 12, temperature)
    assert runner._passes._programs.num_recorded == 1, (
        "the second decode is recorded, and the prompts came once"
    )


@pytest.mark.parametrize("asked", [{}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 20, "min_p": 0.1}])
def test_one_row_draws_what_it_draws_by_a_head_that_is_not_in_halves(demo, options, monkeypatch, asked):
    """Compare draws where kernels have halves, since some of the logits are not computed then."""
    if torch.bfloat16 not in CpuKernels().halves:
        pytest.skip("these kernels have no halves")
    options |= {"backend": "cpu", "dtype": "bfloat16", "quantization": "int8"}
    runner, without = (
        TorchRunner(RunnerConfig(model=demo, **options)),
        TorchRunner(RunnerConfig(model=demo, **options)),
    )
    assert runner._passes._programs._halved_head is not None
    without._passes._programs._halved_head = None
    screened = []
    screen = CpuKernels.screen
    monkeypatch.setattr(CpuKernels, "screen", lambda *given: screened.append(1) or screen(*given))
    found = _tokens_of_one(runner, asked)
    assert screened
    assert found == _tokens_of_one(without, asked)
    assert len(set(found)) > 5


def _tokens_of_one(runner, asked):
    batch = Batch(max_num_seqs=4, max_model_len=64, block_size=4)
    new = NewSequence(
        row=2,
        token_ids=int32([5, 9, 7]),
        blocks=int32(range(9)),
        params=SamplingParams(**{"temperature": 0.0} | asked, seed=3),
        num_prompt_tokens=3,
    )
    tokens = []
    for step in range(30):
        inputs = batch.apply(
            StepPlan(
                **dict(number=step + 1, epoch=1, freed_rows=int32(), new=(new,) if step == 0 else ()),
                **dict(grown_rows=int32(), grown_counts=int32(), grown_blocks=int32(), rows=int32([2])),
                starts=int32([0 if step == 0 else step + 2]),
                num_tokens=int32([3 if step == 0 else 1]),
                draws=bools([True]),
            )
        )
        tokens += runner.launch(inputs).token_ids().tolist()
        batch.take_tokens(inputs, np.array(tokens[-1:]))
    return tokens


@pytest.mark.parametrize("asked", [{"presence_penalty": 1.5}, {"logprobs": 3}, {"logit_bias": {7: 4.0}}])
def test_steps_that_do_more_than_draw_are_recorded_to_their_logits(generate, demo, options, asked):
    options |= {"backend": "cpu"}
    runner, without = (
        TorchRunner(RunnerConfig(model=demo, **options)),
        TorchRunner(RunnerConfig(model=demo, **options)),
    )
    without._passes._programs = None
    plain = generate(runner, 6, 1.0)
    assert generate(runner, 6, 1.0, **asked) == generate(without, 6, 1.0, **asked)
    assert runner._passes._programs.num_recorded == 3, "the prompts came twice, too"
    assert generate(runner, 6, 1.0) == plain


def test_a_step_with_adapters_is_no_recording_of_one_without(generate, demo, options, adapters):
    options |= {"backend": "cpu", "adapters": adapters}
    runner = TorchRunner(RunnerConfig(model=demo, **options))
    programs = runner._passes._programs
    bare, recorded = generate(runner, 6), programs.num_recorded
    assert recorded > 0
    adapted = generate(runner, 6, adapters={0: "one", 3: "two"})
    assert programs.num_recorded == recorded
    assert [step[1] for step in adapted] == [step[1] for step in bare], "row 2 has none"
    assert adapted == generate(
        TorchRunner(RunnerConfig(model=demo, **options | {"backend": "reference"})),
        6,
        adapters={0: "one", 3: "two"},
    )
    assert generate(runner, 6) == bare


def test_a_shape_that_cannot_be_recorded_is_computed_and_not_tried_again(
    generate, demo, options, monkeypatch
):
    tries = []

    def refuse(run):
        tries.append(1)
        raise RuntimeError("no")

    runner = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu"}))
    monkeypatch.setattr(runner._passes._programs._kernels, "capture", refuse)
    without = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu"}))
    without._passes._programs = None
    assert generate(runner, 5) == generate(without, 5)
    assert len(tries) == 3, "to its tokens, to its logits, and to its hidden states"
    assert runner._passes._programs.num_recorded == 0


def test_the_reference_is_not_recorded(demo, options):
    assert TorchRunner(RunnerConfig(model=demo, **options))._passes._programs is None


VOCAB_SIZE = 4096
PLAIN, GUIDED = 1, (0, 3)


def _guided_tokens(runner, steps, come):
    """Rows 0 and 3 guided, row 1 not. Masks of a step come before it, after it, or half of them, as `come` says."""
    batch = Batch(max_num_seqs=4, max_model_len=64, block_size=4)
    asked = StructuredOutputsParams(regex=".*")
    new = tuple(
        NewSequence(
            row=row,
            token_ids=int32([5 + row, 9]),
            blocks=int32([9 * row + block for block in range(9)]),
            params=SamplingParams(
                temperature=float(row != 3), seed=row, structured_outputs=None if row == PLAIN else asked
            ),
            num_prompt_tokens=2,
        )
        for row in (3, 1, 0)
    )
    rows, drawn = int32([3, 1, 0]), []
    for step in range(steps):
        inputs = batch.apply(
            StepPlan(
                **dict(number=step + 1, epoch=1, freed_rows=int32(), new=new if step == 0 else ()),
                **dict(grown_rows=int32(), grown_counts=int32(), grown_blocks=int32(), rows=rows),
                starts=int32([0 if step == 0 else step + 1] * 3),
                num_tokens=int32([2 if step == 0 else 1] * 3),
                draws=bools([True] * 3),
            )
        )
        first, second = (_masks_of(batch, row, step + 2) for row in GUIDED)
        when = come(step)
        batch.guiding.take_masks(first) if when != "after" else None
        batch.guiding.take_masks(second) if when == "before" else None
        found = runner.launch(inputs)
        assert isinstance(found, PendingSample) == (when != "before")
        if isinstance(found, PendingSample):
            batch.guiding.take_masks(first)
            batch.guiding.take_masks(second)
            found = runner.draw(found)
        drawn.append(found.token_ids().tolist())
        batch.take_tokens(inputs, np.array(drawn[-1]))
    return drawn


def _masks_of(batch, row, position):
    """Three tokens may follow, by row and position."""
    allowed = np.zeros((1, VOCAB_SIZE), np.uint8)
    allowed[0, _allowed(row, position)] = 1
    bits = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    guide = int64([batch.guiding.guide_of(row)])
    return TokenMasks(
        epoch=1, guides=guide, positions=int64([position]), ahead=int64([0]), bits=bits, failed={}
    )


def _allowed(row, position):
    return [(997 * row + 31 * position + 400 * place) % 4000 + 1 for place in range(3)]


@pytest.mark.parametrize(
    "come",
    [
        lambda step: "before",
        lambda step: "after",
        lambda step: ("before", "before", "before", "half", "after")[step % 5],
    ],
    ids=["before", "after", "now and then"],
)
def test_recorded_steps_draw_what_masks_allow_whenever_those_come(demo, options, come):
    runner = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu"}))
    without = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu"}))
    without._passes._programs = None
    found = _guided_tokens(runner, 20, come)
    assert found == _guided_tokens(without, 20, come)
    for step, tokens in enumerate(found):
        assert tokens[2] in _allowed(0, step + 2) and tokens[0] in _allowed(3, step + 2)
    # Where masks are late when they are first looked for, there is nothing to draw by, and only logits are recorded.
    assert runner._passes._programs.num_recorded >= 1
    assert _guided_tokens(runner, 20, come) == found, "other masks, in the same memory or elsewhere"


def test_steps_with_long_prompts_are_recorded_only_if_they_come_often(demo, options):
    runner = TorchRunner(RunnerConfig(model=demo, **options | {"backend": "cpu"}))
    programs = runner._passes._programs
    few, many = (SimpleNamespace(positions=range(count), states=None) for count in (64, 65))
    few.context_lengths = many.context_lengths = range(2)
    found = [programs._shape_of(_Kind.HIDDEN, step) is not None for step in [few] * 3 + [many] * 9]
    assert found == [False, True, True, *[False] * 7, True, True]
    decodes = SimpleNamespace(positions=range(65), context_lengths=range(65), states=None)
    programs._seqs_max = 65
    assert [programs._shape_of(_Kind.TOKENS, decodes) is not None for _ in range(2)] == [False, True]
