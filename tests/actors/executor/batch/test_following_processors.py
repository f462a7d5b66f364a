"""Processors in vLLM's form are told of the same batch, whatever rows the steps have."""

import random

import numpy as np
import pytest
import torch

from pageant.actors.executor.batch.following_processors import FollowingProcessor
from pageant.actors.executor.batch.processors import ProcessedRow
from pageant.protocol.logits_processing import (
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
    process_dict_updates,
)
from pageant.protocol.sampling import SamplingParams

VOCAB = 50


def expected_logits(row):
    """The logits that both processors below make of a row: its tokens' sum, at the place that its request names."""
    logits = torch.zeros(VOCAB)
    target = (row.params.extra_args or {}).get("target")
    if target is not None:
        logits[target] = float(row.prompt_token_ids.sum() + 2 * row.output_token_ids.sum())
    return logits


class Sums(LogitsProcessor):
    """Keeps its state by place, as vLLM's own processors do."""

    def __init__(self, vllm_config, device, is_pin_memory):
        self.states = {}

    @classmethod
    def validate_params(cls, params):
        if (params.extra_args or {}).get("target") == "nowhere":
            raise ValueError("target must be a number")

    def is_argmax_invariant(self):
        return False

    def update_state(self, batch_update):
        def state(params, prompt, output):
            target = (params.extra_args or {}).get("target")
            return None if target is None else (target, prompt, output)

        process_dict_updates(self.states, batch_update, state)

    def apply(self, logits):
        for place, (target, prompt, output) in self.states.items():
            logits[place, target] += sum(prompt) + 2 * sum(output)
        return logits


class SumsOfEach(AdapterLogitsProcessor):
    def is_argmax_invariant(self):
        return False

    def new_req_logits_processor(self, params):
        target = (params.extra_args or {}).get("target")
        if target is None:
            return None

        def process(prompt, output, logits):
            logits[target] += sum(prompt) + 2 * sum(output)
            return logits

        return process


class Request:
    def __init__(self, row, chance):
        self.row = row
        target = chance.choice([None, 3, 4])
        self.params = SamplingParams(extra_args=None if target is None else {"target": target})
        self.prompt = np.array([chance.randrange(9) for _ in range(3)], np.int32)
        self.output = [chance.randrange(9) for _ in range(chance.randrange(3))]

    def view(self):
        return ProcessedRow(self.params, self.prompt, np.array(self.output, np.int32), self.row)


@pytest.mark.parametrize("cls", [Sums, SumsOfEach])
@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_requests_gives_each_row_its_own_logits(cls, seed):
    """Requests come, end, change places, are preempted, and have tokens taken back that were drafts."""
    chance = random.Random(seed)
    processor = FollowingProcessor(cls, "cpu")
    running = []
    for _ in range(60):
        while len(running) < 6 and chance.random() < 0.5:
            running.append(Request(chance.randrange(4), chance))
        running = [one for one in running if chance.random() > 0.15]
        if chance.random() < 0.2:
            chance.shuffle(running)
        rows = [one.view() for one in running for _ in range(chance.choice([1, 1, 2]))]
        logits = processor.apply(torch.zeros(len(rows), VOCAB), rows)
        assert torch.equal(
            logits, torch.stack([expected_logits(row) for row in rows] or [torch.zeros(VOCAB)])[: len(rows)]
        )
        for one in running:
            if one.output and chance.random() < 0.2:
                one.output[-1] = (one.output[-1] + 1) % 9
            one.output += [chance.randrange(9) for _ in range(chance.randrange(3))]


def test_a_request_that_stays_is_not_added_again():
    updates = []

    class Watching(Sums):
        def update_state(self, batch_update):
            updates.append(batch_update)
            super().update_state(batch_update)

    processor, chance = FollowingProcessor(Watching, "cpu"), random.Random(0)
    first, second = Request(0, chance), Request(1, chance)
    for _ in range(3):
        processor.apply(torch.zeros(2, VOCAB), [first.view(), second.view()])
        first.output.append(1)
        second.output.append(2)
    assert [one is None for one in updates] == [False, True, True]
    processor.apply(torch.zeros(1, VOCAB), [second.view()])
    assert updates[-1].removed == [0, 1] and [one[0] for one in updates[-1].added] == [0]


def test_what_raises_leaves_no_state_behind():
    class Failing(Sums):
        def apply(self, logits):
            if len(logits) == 2:
                raise RuntimeError("two")
            return super().apply(logits)

    processor, chance = FollowingProcessor(Failing, "cpu"), random.Random(1)
    rows = [Request(number, chance).view() for number in range(2)]
    with pytest.raises(RuntimeError):
        processor.apply(torch.zeros(2, VOCAB), rows)
    for row in rows:
        assert torch.equal(processor.apply(torch.zeros(1, VOCAB), [row])[0], expected_logits(row))


def test_parameters_are_refused_where_the_processor_refuses_them():
    processor = FollowingProcessor(Sums, "cpu")
    assert processor.wants(SamplingParams())
    with pytest.raises(ValueError, match="target must be a number"):
        processor.wants(SamplingParams(extra_args={"target": "nowhere"}))


def test_states_move_and_swap_as_a_batch_says():
    entries = {0: "a", 1: "b", 2: "c", 3: "d"}
    moved = [(0, 1, MoveDirectionality.SWAP), (2, 3, MoveDirectionality.UNIDIRECTIONAL)]
    assert process_dict_updates(entries, BatchUpdate(4, [], [], moved), lambda *_: None)
    assert entries == {0: "b", 1: "a", 3: "c"}
    params = SamplingParams()
    assert process_dict_updates(entries, BatchUpdate(4, [1], [(0, params, None, [])], ()), lambda *_: None)
    assert entries == {3: "c"}
    assert not process_dict_updates(entries, None, lambda *_: None)
