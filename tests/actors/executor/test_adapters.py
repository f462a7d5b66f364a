"""Adapters of rows, when some come and go between plans."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pageant.actors.executor.adapters import AdapterBook
from pageant.actors.executor.batch.batch import Batch
from pageant.protocol.adapters import AddedAdapter
from pageant.protocol.arrays import int32
from pageant.protocol.sampling import SamplingParams
from pageant.protocol.stepping import NewSequence
from tests.actors.executor.conftest import plan_of

PARAMS = SamplingParams(temperature=0.0)


@pytest.fixture
def batch() -> Batch:
    return Batch(max_num_seqs=4, max_model_len=16, block_size=4, adapters=("sql",))


@pytest.fixture
def book(batch) -> AdapterBook:
    return AdapterBook(batch, ("sql",))


def sequence(row: int, adapter: str | None) -> NewSequence:
    return NewSequence(
        row=row,
        token_ids=int32([5, 6]),
        blocks=int32([row]),
        params=PARAMS,
        num_prompt_tokens=2,
        adapter=adapter,
    )


def begin(batch: Batch, *adapters: str | None):
    """The step of a first plan, with a sequence for each of these."""
    new = tuple(sequence(row, adapter) for row, adapter in enumerate(adapters))
    rows = list(range(len(adapters)))
    return batch.apply(plan_of(1, new=new, rows=rows, starts=[0] * len(rows), counts=[2] * len(rows)))


def go_on(batch: Batch, number: int, rows: list[int]):
    return batch.apply(plan_of(number, rows=rows, starts=[number] * len(rows), counts=[1] * len(rows)))


def adapted(inputs) -> dict[str, list[int]]:
    return {name: tokens.tolist() for name, tokens in inputs.adapted}


def test_one_that_is_added_is_there_from_the_next_plan_on(batch, book):
    book.add("mine#1", AddedAdapter(name="mine", folder="x", owner="key 0"))
    assert book.facts() == {
        "adapters": {"sql": "sql", "mine": "mine#1"},
        "adapter_owners": {"mine": "key 0"},
    }
    inputs = begin(batch, "sql", None, "mine#1")
    assert adapted(inputs) == {"sql": [0, 1], "mine#1": [4, 5]} and inputs.failing == {}


def test_rows_whose_adapter_is_gone_fail_when_they_draw_and_others_do_not(batch, book):
    first = SimpleNamespace(inputs=begin(batch, "sql", None))
    book.remove("sql", [first])
    assert "sql" not in book and book.take_forgotten([first]) == [], "the step at hand has it"
    second = go_on(batch, 2, [0, 1])
    assert adapted(second) == {} and second.failing == {0: "the adapter 'sql' was unloaded"}
    assert book.take_forgotten([]) == ["sql"] and book.take_forgotten([]) == []


def test_a_sequence_that_comes_too_late_fails(batch, book):
    book.remove("sql", [])
    inputs = begin(batch, None, "sql", "nobody's")
    assert inputs.failing == {
        1: "the adapter 'sql' is not loaded any more",
        2: 'the adapter "nobody\'s" is not loaded any more',
    }


def test_a_row_that_is_another_sequences_by_then_does_not_fail(batch, book):
    begin(batch, "sql")
    book.remove("sql", [])
    plan = plan_of(2, new=(sequence(0, None),), rows=[0], starts=[0], counts=[2])
    assert batch.apply(plan).failing == {}


def test_a_retired_one_is_not_offered_and_is_computed_all_the_same(batch, book):
    book.retire("sql")
    assert book.facts() == {"adapters": {}, "adapter_owners": {}}
    assert adapted(begin(batch, "sql")) == {"sql": [0, 1]}
