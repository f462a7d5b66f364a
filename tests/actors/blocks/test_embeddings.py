"""Numbers that stand for embeddings: equal where rows are, and never for two of them."""

from __future__ import annotations

import numpy as np
import pytest

from pageant.actors.blocks.allocation import Allocation
from pageant.actors.blocks.embeddings import EmbeddingNumbers
from pageant.actors.blocks.pool import BlockPool
from pageant.protocol.allocation import Admission, Assign
from pageant.protocol.arrays import int32, int64
from pageant.protocol.block_names import root_name
from pageant.protocol.embedding import NAME_BYTES, row_names

ROWS = np.arange(24, dtype=np.float32).reshape(6, 4)


def test_rows_are_called_by_their_values_as_floats():
    names = row_names(ROWS).reshape(6, NAME_BYTES)
    assert len({bytes(name) for name in names}) == 6
    assert (row_names(ROWS[::2]) == names[::2].ravel()).all()  # wherever they lie
    changed = ROWS.copy()
    changed[2, 3] = np.nextafter(changed[2, 3], np.float32(100))
    differs = (row_names(changed).reshape(6, NAME_BYTES) != names).any(axis=1)
    assert differs.tolist() == [False, False, True, False, False, False]


def test_a_number_is_one_rows_own_and_no_tokens():
    numbers = EmbeddingNumbers(100)
    first = numbers.number(row_names(ROWS))
    assert (first < -1).all() and len({*first.tolist()}) == 6
    assert (numbers.number(row_names(ROWS[[4, 0]])) == first[[4, 0]]).all()


def test_what_is_forgotten_gets_another_number():
    numbers = EmbeddingNumbers(4)
    first = numbers.number(row_names(ROWS))
    assert len(numbers) == 4
    again = numbers.number(row_names(ROWS))
    assert {*again.tolist()}.isdisjoint(first[:2].tolist()) and again[0] != first[0]


def test_when_all_numbers_have_been_given_out_they_begin_anew_under_another_root():
    numbers = EmbeddingNumbers(100, first=-(2**31) + 8)
    first = numbers.number(row_names(ROWS))
    assert numbers.generation == 0
    second = numbers.number(row_names(ROWS + 1))
    assert numbers.generation == 1 and second[0] == first[0]
    assert len({root_name(embeddings=one) for one in (None, 0, 1)}) == 3


@pytest.fixture
def allocation():
    return Allocation(BlockPool(32, True), block_size=4)


def admit(allocation, step, rows, output=()):
    """Admits a prompt of rows, as it is computed, and gives it up. Returns how much of it was cached."""
    token_ids = int32([0] * len(rows) + list(output))
    return admit_as(
        allocation, step, Admission(serial=step, token_ids=token_ids, embed_names=row_names(rows))
    )


def admit_as(allocation, step, admission):
    """Admits a prompt, as it is computed, and gives it up. Returns how much of it was cached."""
    empty = {"learned_serials": int64(), "learned_counts": int32(), "token_ids": int32()}
    empty |= {"grow_serials": int64(), "grow_lengths": int32()}
    common = {"epoch": 1, "computed_step": step - 1, **empty, "admission_tokens": 64}
    found = allocation.assign(Assign(step=step, freed=int64(), admissions=(admission,), **common))
    allocation.assign(
        Assign(step=step + 1, freed=int64([step]), admissions=(), **common | {"computed_step": step})
    )
    return found.admitted[0].num_cached_tokens


def test_blocks_are_found_by_the_content_of_their_rows_and_what_follows_them(allocation):
    rows = np.random.default_rng(1).normal(size=(10, 8)).astype(np.float32)
    assert admit(allocation, 2, rows) == 0
    assert admit(allocation, 4, rows) == 9  # but for the last, whose logits are wanted
    changed = rows.copy()
    changed[5] += 1
    assert admit(allocation, 6, changed) == 5
    assert admit(allocation, 8, rows, output=[7, 8, 9]) == 10
    assert admit(allocation, 10, rows, output=[7, 8, 1]) == 12
    plain = Admission(serial=99, token_ids=int32([0] * 10))
    empty = {"learned_serials": int64(), "learned_counts": int32(), "token_ids": int32(), "freed": int64()}
    empty |= {"grow_serials": int64(), "grow_lengths": int32()}
    found = allocation.assign(
        Assign(step=12, epoch=1, computed_step=11, **empty, admissions=(plain,), admission_tokens=64)
    )
    assert found.admitted[0].num_cached_tokens == 0
    allocation.check_integrity()


def test_texts_around_images_are_shared_up_to_the_first_row_that_differs(allocation):
    """Twelve tokens, of which four in the middle are an image's, beside prompts without one."""
    rows = np.random.default_rng(1).normal(size=(4, 8)).astype(np.float32)
    other = rows.copy()
    other[2] += 1
    places, serials = int32([5, 6, 7, 8]), iter(range(2, 100, 2))
    token_ids = int32([10, 11, 12, 13, 14, 9, 9, 9, 9, 15, 16, 17])

    def cached(rows, ids=token_ids):
        serial = next(serials)
        names = None if rows is None else row_names(rows)
        given = Admission(
            serial=serial, token_ids=ids, embed_names=names, embed_places=None if rows is None else places
        )
        return admit_as(allocation, serial, given)

    assert cached(None, token_ids[:5]) == 0
    assert cached(rows) == 5, "the text before the image is that of the prompt without one"
    assert cached(other) == 7, "rows are shared up to the one that differs"
    assert cached(rows) == cached(other) == 11
    assert cached(None) == 5, "placeholders alone are no image"
    later = int32([*token_ids[:9], 15, 16, 18])
    assert cached(rows, later) == 11
    allocation.check_integrity()
