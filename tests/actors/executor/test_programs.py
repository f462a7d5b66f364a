"""Small steps as recorded calls of kernels draw the tokens that steps computed by Python draw."""

from __future__ import annotations

import pytest

from pageant.actors.executor.runner import TorchRunner


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_recorded_steps_draw_the_same_tokens(generate, demo, options, temperature, dtype):
    runner = TorchRunner(demo, **options | {"backend": "cpu", "dtype": dtype})
    without = TorchRunner(demo, **options | {"backend": "cpu", "dtype": dtype})
    without._passes._programs = None
    assert generate(runner, 12, temperature) == generate(without, 12, temperature)
    assert runner._passes._programs.num_recorded == 1, (
        "the second decode is recorded, and the prompts came once"
    )


@pytest.mark.parametrize("asked", [{"presence_penalty": 1.5}, {"logprobs": 3}, {"logit_bias": {7: 4.0}}])
def test_steps_that_do_more_than_draw_are_recorded_to_their_logits(generate, demo, options, asked):
    options |= {"backend": "cpu"}
    runner, without = TorchRunner(demo, **options), TorchRunner(demo, **options)
    without._passes._programs = None
    plain = generate(runner, 6, 1.0)
    assert generate(runner, 6, 1.0, **asked) == generate(without, 6, 1.0, **asked)
    assert runner._passes._programs.num_recorded == 3, "the prompts came twice, too"
    assert generate(runner, 6, 1.0) == plain


def test_a_step_with_adapters_is_no_recording_of_one_without(generate, demo, options, adapters):
    options |= {"backend": "cpu", "adapters": adapters}
    runner = TorchRunner(demo, **options)
    programs = runner._passes._programs
    bare, recorded = generate(runner, 6), programs.num_recorded
    assert recorded > 0
    adapted = generate(runner, 6, adapters={0: "one", 3: "two"})
    assert programs.num_recorded == recorded
    assert [step[1] for step in adapted] == [step[1] for step in bare], "row 2 has none"
    assert adapted == generate(
        TorchRunner(demo, **options | {"backend": "reference"}), 6, adapters={0: "one", 3: "two"}
    )
    assert generate(runner, 6) == bare


def test_a_shape_that_cannot_be_recorded_is_computed_and_not_tried_again(generate, demo, options):
    tries = []

    def refuse(run):
        tries.append(1)
        raise RuntimeError("no")

    runner = TorchRunner(demo, **options | {"backend": "cpu"})
    runner._passes._programs._capture = refuse
    without = TorchRunner(demo, **options | {"backend": "cpu"})
    without._passes._programs = None
    assert generate(runner, 5) == generate(without, 5)
    assert len(tries) == 3, "to its tokens, to its logits, and to its hidden states"
    assert runner._passes._programs.num_recorded == 0


def test_the_reference_is_not_recorded(demo, options):
    assert TorchRunner(demo, **options)._passes._programs is None
