"""Names of blocks: equal for equal prefixes, and for nothing else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pageant.protocol.arrays import int32
from pageant.protocol.block_names import NAME_BYTES, block_name, block_names, full_blocks, root_name

TOKENS = st.lists(st.integers(0, 2), max_size=12)


def names_of(tokens, size, root=None):
    return block_names(root or root_name(), full_blocks(int32(tokens), size)[0])


@given(one=TOKENS, other=TOKENS)
def test_two_sequences_share_as_many_names_as_they_share_full_blocks(one, other):
    size = 3
    names = zip(names_of(one, size), names_of(other, size), strict=False)
    shared = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], names)))
    common = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))
    assert shared == common // size


def test_a_name_covers_every_token_before_it():
    first = names_of([1, 2, 3, 4], 2)
    second = names_of([9, 2, 3, 4], 2)
    assert first[1] != second[1], "the last blocks hold the same tokens after different ones"


def test_only_full_blocks_have_names_of_128_bits():
    names = names_of(range(11), 4)
    assert [len(name) for name in names] == [NAME_BYTES, NAME_BYTES]
    assert names_of((), 4) == []


def test_a_salt_parts_equal_prefixes():
    names = {names_of([1, 2, 3], 3, root_name(salt))[0] for salt in (None, "one", "other")}
    assert len(names) == 3


def test_extra_keys_part_equal_prefixes_and_run_into_nothing():
    roots = {
        root_name(*keys)
        for keys in ((), ("a",), (None, ("a",)), ("a", ("b",)), (None, ("a", "b")), (None, ("ab",)))
    }
    assert len(roots) == 6


def test_nothing_that_a_client_chooses_stands_for_an_adapter():
    roots = {root_name(adapter=name) for name in (None, "a", "b")}
    roots |= {
        root_name("a"),
        root_name(None, ("a",)),
        root_name("a", adapter="a"),
        root_name(None, ("a",), "a"),
    }
    assert len(roots) == 7


def test_names_can_be_made_block_by_block():
    tokens = int32([5, 6, 7, 8])
    step = block_name(block_name(root_name(), tokens[:2].tobytes()), tokens[2:].tobytes())
    assert names_of(tokens, 2)[-1] == step
