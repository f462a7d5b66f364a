"""Shaping of logits, against plain loops over rows and tokens, and transformers' own processor."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np
import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from pageant.actors.executor.batch.shaping import NOTHING, Shapers, shape_logits
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence

VOCABULARY = 23
END = 2


def sequence(row, prompt, output=(), **params):
    return NewSequence(
        row=row,
        token_ids=int32([*prompt, *output]),
        num_prompt_tokens=len(prompt),
        blocks=int32([]),
        params=SamplingParams(**params),
    )


def shape(shapers, logits, rows, positions):
    """Shapes a copy of the logits of rows that draw tokens for these positions."""
    shaped = logits.clone()
    shape_logits(shaped, shapers.of_step(int32(rows), np.array(positions, np.int64)))
    return shaped


def one(logits, prompt, output=(), **params):
    """A row alone; logits are a list."""
    shapers = Shapers((END,))
    shapers.add(sequence(0, prompt, output, **params))
    return shape(shapers, torch.tensor([logits]), [0], [len(prompt) + len(output)])[0].tolist()


def by_hand(logits, prompt, output, params):
    """Shape logits in plain Python, a token at a time, in the documented order."""
    allowed = params.allowed_token_ids
    ends = [*([] if params.ignore_eos else [END]), *params.stop_token_ids]
    if allowed and set(allowed) <= set(ends):
        ends = []
    shaped = []
    for token, logit in enumerate(logits):
        if allowed is not None and token not in allowed:
            logit = -math.inf
        if len(output) < params.min_tokens and token in ends:
            logit = -math.inf
        logit += (params.logit_bias or {}).get(token, 0.0)
        if token in prompt or token in output:
            logit = logit / params.repetition_penalty if logit > 0 else logit * params.repetition_penalty
        logit -= params.frequency_penalty * output.count(token)
        logit -= params.presence_penalty * (token in output)
        shaped.append(logit)
    return shaped


def random_params(rng):
    """Some of the parameters, each with a chance of its own."""
    choices = {
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.choice([0.5, 1.3, 2.0]),
        "logit_bias": {token: rng.uniform(-9, 9) for token in rng.sample(range(VOCABULARY), 5)},
        "allowed_token_ids": [rng.randrange(VOCABULARY) for _ in range(9)],
        "min_tokens": rng.randint(1, 6),
        "stop_token_ids": rng.sample(range(VOCABULARY), 2),
        "ignore_eos": True,
    }
    return {name: value for name, value in choices.items() if rng.random() < 0.4}


@pytest.mark.parametrize("seed", range(20))
def test_a_batch_of_mixed_rows_is_shaped_as_by_hand_at_each_step(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shapers, rows, prompts, outputs, params = Shapers((END,)), [5, 0, 3, 2, 7], {}, {}, {}
    for row in rows:
        prompts[row] = [rng.randrange(VOCABULARY) for _ in range(rng.randint(1, 30))]
        outputs[row] = [rng.randrange(VOCABULARY) for _ in range(rng.choice([0, 0, 4]))]
        chosen = random_params(rng)
        params[row] = SamplingParams(**chosen)
        shapers.add(sequence(row, prompts[row], outputs[row], **chosen))
    for _ in range(40):
        step = rng.sample(rows, rng.randint(1, 5))
        logits = 4 * torch.randn(len(step), VOCABULARY)
        positions = [len(prompts[row]) + len(outputs[row]) for row in step]
        found = shape(shapers, logits, step, positions)
        for index, row in enumerate(step):
            expected = by_hand(logits[index].tolist(), prompts[row], outputs[row], params[row])
            torch.testing.assert_close(found[index], torch.tensor(expected))
        drawn = [rng.randrange(VOCABULARY) for _ in step]
        shapers.take(int32(step), np.array(positions), np.array(drawn, np.int64))
        for row, token in zip(step, drawn, strict=True):
            outputs[row].append(token)


@pytest.mark.parametrize("seed", range(10))
def test_a_row_gets_the_same_bits_alone_in_a_batch_and_after_it_was_resumed(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    chosen = [random_params(rng) | {"presence_penalty": 0.7, "repetition_penalty": 1.1} for _ in range(6)]
    prompts = [[rng.randrange(VOCABULARY) for _ in range(9)] for _ in chosen]
    outputs = [[rng.randrange(VOCABULARY) for _ in range(25)] for _ in chosen]
    logits = torch.randn(6, VOCABULARY)
    batch, rows = Shapers((END,)), int32(range(6))
    for row in range(6):
        batch.add(sequence(row, prompts[row], **chosen[row]))
    for position, drawn in enumerate(zip(*outputs, strict=True), 9):
        batch.take(rows, np.full(6, position), np.array(drawn, np.int64))
    together = shape(batch, logits, rows, [34] * 6)
    for row in range(6):
        resumed = Shapers((END,))
        resumed.add(sequence(1, prompts[row], outputs[row], **chosen[row]))
        assert torch.equal(shape(resumed, logits[row : row + 1], [1], [34])[0], together[row])


@pytest.mark.parametrize("penalty", [0.5, 1.0, 1.7])
def test_the_repetition_penalty_is_that_of_transformers(penalty):
    torch.manual_seed(1)
    logits = 4 * torch.randn(1, VOCABULARY)
    prompt, output = [1, 4, 4, 9], [9, 16, 1]
    oracle = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), logits.clone())
    assert one(logits[0].tolist(), prompt, output, repetition_penalty=penalty) == oracle[0].tolist()


def test_frequency_and_presence_look_at_the_output_alone():
    logits = [1.0] * 5
    assert one(logits, [0, 1], [1, 3, 3, 3], frequency_penalty=0.5) == [1.0, 0.5, 1.0, -0.5, 1.0]
    assert one(logits, [0, 1], [1, 3, 3, 3], presence_penalty=0.5) == [1.0, 0.5, 1.0, 0.5, 1.0]
    assert one(logits, [0, 1], [], presence_penalty=0.5, frequency_penalty=2.0) == logits


def test_the_bias_is_penalised_with_the_logit():
    assert one([1.0, 1.0], [0], logit_bias={0: 3.0}, repetition_penalty=2.0) == [2.0, 1.0]
    assert one([1.0, 1.0], [0], logit_bias={0: -3.0}, repetition_penalty=2.0) == [-4.0, 1.0]


def test_no_bias_brings_back_what_is_not_allowed_or_held_back():
    found = one([1.0] * 4, [0], logit_bias={1: 100, 2: 100}, allowed_token_ids=[2, 3], min_tokens=1)
    assert found == [-math.inf, -math.inf, -math.inf, 1.0]


def test_where_only_ends_are_allowed_min_tokens_leaves_them():
    found = one([1.0] * 5, [0], allowed_token_ids=[END, 4], stop_token_ids=[4, 3], min_tokens=3)
    assert found == [-math.inf, -math.inf, 1.0, -math.inf, 1.0]


def test_of_the_allowed_tokens_one_is_left_whatever_else_is_forbidden():
    shapers = Shapers((END,))
    allowed = {"allowed_token_ids": [END, 5, 6], "min_tokens": 3}
    words = ((5,), (6, 6))
    shapers.add(msgspec.structs.replace(sequence(0, [3], [6], **allowed), bad_words=words))
    shaped = shape(shapers, torch.zeros(1, VOCABULARY), [0], [2])[0]
    assert torch.isfinite(shaped).nonzero()[:, 0].tolist() == [END], "ends are given up first"
    shapers.add(msgspec.structs.replace(sequence(0, [3], [6], **allowed), bad_words=(*words, (END,))))
    shaped = shape(shapers, torch.zeros(1, VOCABULARY), [0], [2])[0]
    assert torch.isfinite(shaped).nonzero()[:, 0].tolist() == [END, 5, 6], "and bad words, if need be"


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e-30, 100])
def test_no_penalty_makes_infinities_or_nan_of_finite_logits(penalty):
    found = one([5.0, -5.0, 0.0, 1.0], [0, 1, 2], allowed_token_ids=[0, 1, 2], repetition_penalty=penalty)
    assert all(map(math.isfinite, found[:3]))
    assert found[3] == -math.inf
    assert found[0] > found[2] == 0.0 and found[1] <= 0.0


def test_rows_that_ask_for_nothing_are_not_kept_and_cost_nothing():
    shapers = Shapers((END,))
    shapers.add(sequence(0, [1, 2], repetition_penalty=1.0, logit_bias={}, stop_token_ids=[4]))
    assert len(shapers) == 0
    assert shapers.of_step(int32([0]), np.array([2])) is NOTHING
    shapers.add(sequence(1, [1, 2], presence_penalty=1.0))
    assert shapers.of_step(int32([0]), np.array([2])) is NOTHING
    logits = torch.randn(2, VOCABULARY)
    assert torch.equal(shape(shapers, logits, [0, 1], [2, 2]), logits), "and a neighbour changes nothing"


def test_a_row_that_is_freed_or_taken_anew_forgets_what_it_was():
    shapers = Shapers((END,))
    shapers.add(sequence(0, [1], [2], presence_penalty=1.0))
    shapers.add(sequence(1, [1], [2], presence_penalty=1.0))
    shapers.add(sequence(0, [1], [2]))
    shapers.free(int32([1]))
    assert len(shapers) == 0
    shapers.add(sequence(1, [1], [2], presence_penalty=1.0))
    shapers.clear()
    assert len(shapers) == 0


def test_bad_words_are_forbidden_where_they_would_be_completed():
    shapers = Shapers((END,))
    words = ((7,), (3, 4), (3, 3, 5), (11, 3, 6))
    one = sequence(0, [3], [9, 11], temperature=0)
    shapers.add(msgspec.structs.replace(one, bad_words=words))
    assert shapers.count_tokens
    output = [9, 11]
    logits = torch.zeros(1, VOCABULARY)
    for token in (3, 3, 8, 3):
        shaped = shape(shapers, logits, [0], [1 + len(output)])
        banned = {word[-1] for word in words if [*output, word[-1]][-len(word) :] == list(word)}
        assert set(torch.isinf(shaped[0]).nonzero()[:, 0].tolist()) == banned >= {7}
        shapers.take(int32([0]), np.array([1 + len(output)]), np.array([token]))
        output.append(token)
    shapers.add(msgspec.structs.replace(one, bad_words=((7,),)))
    assert not shapers.count_tokens  # a single token is forbidden whatever came before


def test_a_position_that_is_drawn_again_is_shaped_again():
    """Draw again, as where the step was void, its drafts were wrong, or it was packed ahead and then not computed."""
    shapers = Shapers((END,))
    shapers.add(sequence(0, [5, 6, 7], min_tokens=3))
    found = [
        shape(shapers, torch.ones(1, VOCABULARY), [0], [position])[0, END].item()
        for position in (3, 4, 5, 6, 5, 6)
    ]
    assert found == [-math.inf] * 3 + [1.0, -math.inf, 1.0]
    shapers.take(int32([0]), np.array([4]), np.array([9]))
    assert 0 in shapers
    shapers.take(int32([0]), np.array([5]), np.array([9]))
    assert 0 not in shapers, "nothing shapes what comes after its third token"
